import copy
from functools import partial

import numpy as np
import pytest
import torch

from torch_estimator import optim
from torch_estimator.errors import InvalidTypeError, InvalidValueError

FACTORIES = {
    "GradientDescent": partial(optim.GradientDescent, lr=0.1, momentum=0.9),
    "Adagrad": partial(optim.Adagrad, lr=0.1),
    "Ftrl": partial(optim.Ftrl, lr=0.1, l1_regularization_strength=0.01),
    "Adam": partial(optim.Adam, lr=0.1),
    "AdamW": partial(optim.AdamW, lr=0.1, weight_decay=0.2),
    "RMSProp": partial(optim.RMSProp, lr=0.1, momentum=0.5),
}
every_optimizer = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
# The first compilation of torch imports torch.jit, which is deprecated and warns.
compiles = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


def _parameter(seed=0, shape=(6, 2)):
    return torch.nn.Parameter(torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float())


def _gradients(count, shape=(6, 2)):
    return list(torch.from_numpy(np.random.default_rng(7).normal(size=(count, *shape))).float())


def _train(optimizer, param, gradients):
    for grad in gradients:
        param.grad = grad.clone()
        optimizer.step()


def _is_scalar(tensor, param):
    return tensor.dim() == 0 and param.dim() > 0


@every_optimizer
def test_state_exists_before_the_first_step_with_a_slot_name_for_every_key(factory):
    param = _parameter()
    optimizer = factory([param])
    state = optimizer.state[param]
    assert set(state) == set(optimizer.slot_names)
    assert all(tensor.shape in (param.shape, ()) for tensor in state.values())
    assert not any(tensor.requires_grad for tensor in state.values())


@every_optimizer
def test_parameters_without_a_gradient_stay_as_they_are(factory):
    used, unused = _parameter(1), _parameter(2)
    optimizer = factory([used, unused])
    weights, state = unused.detach().clone(), copy.deepcopy(optimizer.state[unused])
    _train(optimizer, used, _gradients(2))
    assert torch.equal(unused, weights)
    assert all(torch.equal(optimizer.state[unused][key], tensor) for key, tensor in state.items())


@every_optimizer
def test_updating_gathered_rows_equals_updating_the_whole(factory):
    whole, table = _parameter(), _parameter()
    dense, sparse = factory([whole]), factory([table])
    group, state = sparse.param_groups[0], sparse.state[table]
    for grad in _gradients(3):
        whole.grad = grad.clone()
        dense.step()
        with torch.no_grad():
            for rows in (torch.tensor([4, 0, 1]), torch.tensor([2, 5, 3])):
                part = table[rows]
                gathered = {k: v if _is_scalar(v, table) else v[rows] for k, v in state.items()}
                sparse.update(part, grad[rows], gathered, group)
                table[rows] = part
                for key, tensor in gathered.items():
                    if not _is_scalar(tensor, table):
                        state[key][rows] = tensor
            sparse.advance(state, group)
    torch.testing.assert_close(table, whole, rtol=0, atol=1e-6)
    for key, tensor in dense.state[whole].items():
        torch.testing.assert_close(state[key], tensor, rtol=0, atol=1e-6)


@every_optimizer
def test_a_loaded_state_dict_goes_on_exactly(factory):
    gradients = _gradients(6)
    straight, resumed = _parameter(), _parameter()
    optimizer = factory([straight])
    _train(optimizer, straight, gradients)

    first = factory([resumed])
    _train(first, resumed, gradients[:3])
    second = factory([resumed])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    _train(second, resumed, gradients[3:])
    assert torch.equal(resumed, straight)
    for key, tensor in optimizer.state[straight].items():
        assert torch.equal(second.state[resumed][key], tensor)


@every_optimizer
def test_the_learning_rate_may_be_a_tensor(factory):
    with_float, with_tensor = _parameter(), _parameter()
    _train(factory([with_float]), with_float, _gradients(3))
    _train(factory([with_tensor], lr=torch.tensor(0.1)), with_tensor, _gradients(3))
    torch.testing.assert_close(with_tensor, with_float, rtol=0, atol=1e-6)


@every_optimizer
def test_a_step_takes_a_closure_named_parameters_and_groups(factory):
    param, other = _parameter(1), _parameter(2)
    optimizer = factory([{"params": [("param", param)]}, {"params": [("other", other)], "lr": 0.2}])

    def closure():
        optimizer.zero_grad()
        loss = (param**2).sum() + (other**2).sum()
        loss.backward()
        return loss.detach()

    first = float(optimizer.step(closure))
    assert float(optimizer.step(closure)) < first


@compiles
def test_updates_compile_whole_on_parameters_and_on_rows():
    torch.compiler.reset()
    optimizers = {name: factory([_parameter()]) for name, factory in FACTORIES.items()}
    rows = torch.tensor([5, 1, 2])

    def train(params, states, grad):
        for name, optimizer in optimizers.items():
            param, state, group = params[name], states[name], optimizer.param_groups[0]
            optimizer.update(param, grad, state, group)
            part = param[rows]
            gathered = {k: v if v.dim() == 0 else v[rows] for k, v in state.items()}
            optimizer.update(part, grad[rows], gathered, group)
            param.index_copy_(0, rows, part)
            for key, tensor in gathered.items():
                if tensor.dim():
                    state[key].index_copy_(0, rows, tensor)
            optimizer.advance(state, group)

    def run(function):
        params = {name: _parameter().detach() for name in optimizers}
        states = {
            name: copy.deepcopy(dict(next(iter(optimizer.state.values()), {})))
            for name, optimizer in optimizers.items()
        }
        with torch.no_grad():
            for grad in _gradients(3):
                function(params, states, grad)
        return params, states

    torch.testing.assert_close(run(torch.compile(train, fullgraph=True)), run(train), rtol=1e-6, atol=1e-6)


@compiles
@every_optimizer
def test_the_undecorated_step_compiles_whole(factory):
    torch.compiler.reset()
    compiled, eager = _parameter(), _parameter()
    optimizer = factory([compiled])
    step = torch.compile(lambda: type(optimizer).step.__wrapped__(optimizer), fullgraph=True, backend="aot_eager")
    for grad in _gradients(2):
        compiled.grad = grad.clone()
        step()
    _train(factory([eager]), eager, _gradients(2))
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-6)


@every_optimizer
def test_a_learning_rate_must_be_a_finite_number_not_negative(factory):
    with pytest.raises(InvalidValueError, match=r"^lr must be at least 0, but got -0.1\.$"):
        factory([_parameter()], lr=-0.1)
    with pytest.raises(InvalidValueError, match="lr must be at least 0, but got nan"):
        factory([_parameter()], lr=float("nan"))
    with pytest.raises(InvalidTypeError, match=r"lr must be a number, but got '0\.1'"):
        factory([_parameter()], lr="0.1")
    with pytest.raises(InvalidValueError, match=r"a tensor of shape \[2\]"):
        factory([_parameter()], lr=torch.tensor([0.1, 0.2]))
