"""Rewriting of one file: what each use of TensorFlow becomes, and what the user has to do about the others."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers

from torch_estimator.port.names import Names, TensorFlowName, without_root
from torch_estimator.port.table import (
    ACTIVATIONS,
    ADVICE,
    ANYTHING_ELSE,
    ATTRIBUTES,
    BY_GENERATION,
    BYTE_DECODERS,
    COMPUTES,
    CSV_PARSERS,
    DECODES_RECORDS,
    DELETED,
    METHODS,
    OTHER_LOSS,
    RECEIVERS,
    RECORD_PARSERS,
    RENAMED,
    SERVING_CSV,
    SERVING_DEFAULTS,
    SERVING_EXAMPLES,
    SERVING_JSON,
    TENSOR,
    TYPES,
    WHOLE,
    Renamed,
)

# What takes types as strings.
_TYPED = ("te.feature_column.", "te.data.", "te.classifier_parse_", "te.regressor_parse_")
_ACTIVATION_ARGUMENTS = ("activation_fn", "dnn_activation_fn")
_OPTIMIZER_ARGUMENTS = ("optimizer", "dnn_optimizer", "linear_optimizer")

# Arguments of tf.data that are spelled otherwise here, by method.
_DATASET_ARGUMENTS: dict[str, dict[str, str]] = {
    "shuffle": {"buffer_size": "buffer"},
    "batch": {"batch_size": "size"},
    "take": {"count": "rows"},
    "skip": {"count": "rows"},
    "map": {"map_func": "fn"},
    "repeat": {},
    "cache": {},
    "shard": {},
}
_DATASET_ONLY_TF = ("num_parallel_calls", "deterministic", "name")
_BYTES = 'the type "string" is text; for images and other bytes write "bytes"'
_MAP = "the function gets many rows at once, as numpy arrays; write it with numpy"
_BATCHES = "an Estimator takes batches: add .batch(n), unless the rows are batched elsewhere"
# Layers that do nothing in training unless the call says `training=`.
_ONLY_IN_TRAINING = {
    "layers.dropout": "without training=, it drops nothing in TensorFlow; a torch module in training mode drops",
    "layers.batch_normalization": (
        "without training=, it normalizes with its first averages in TensorFlow; "
        "a torch module in training mode takes the batch's"
    ),
}
# Functions that minimize their first argument.
_MINIMIZING = ("minimize", "compute_gradients", "optimize_loss", "create_train_op")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that the user has to do or, if the code was rewritten (`is_note`), should know.

    `name` is the code that the line is about.
    """

    line: int
    name: str
    text: str
    is_note: bool = False


@dataclass(slots=True)
class _CallEdit:
    """Changes to a call: new arguments by position of the old one (None removes it), and arguments to add."""

    arguments: dict[int, cst.Arg | None] = field(default_factory=dict)
    added: list[cst.Arg] = field(default_factory=list)


@dataclass(slots=True)
class Edits:
    """What to change in a file, by node of its tree."""

    replaced: dict[cst.CSTNode, str] = field(default_factory=dict)
    calls: dict[cst.CSTNode, _CallEdit] = field(default_factory=dict)
    receivers: set[cst.CSTNode] = field(default_factory=set)
    bodies: set[cst.CSTNode] = field(default_factory=set)
    deleted: set[cst.CSTNode] = field(default_factory=set)
    kept_roots: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    uses_generation: bool = False


@dataclass(slots=True)
class _Function:
    """What is known of a function while it is read.

    `findings` is the number of findings before it; `is_model` says whether it is a ``model_fn``; `left` holds names of
    TensorFlow that are left to the user. `parses_csv` says whether it calls a function of the file that parses lines of
    CSV, `computes` whether it calls other functions of the program, or has arithmetic. `losses` holds the code of the
    loss that it minimizes (key False), and of the loss of its EstimatorSpec (True).
    """

    findings: int
    is_model: bool
    left: set[str] = field(default_factory=set)
    parses_csv: bool = False
    computes: bool = False
    losses: dict[bool, str] = field(default_factory=dict)

    def advice(self) -> str | None:
        """Return what to write in place of the whole function, or None if single names of it can be replaced."""
        if self.is_model:
            differ = len({*self.losses.values()}) == 2
            more = OTHER_LOSS.format(self.losses[False], self.losses[True]) if differ else ""
            return ADVICE["estimator.EstimatorSpec"] + more
        whole = next((text for name, text in WHOLE.items() if name in self.left), None)
        if self.left.isdisjoint(RECEIVERS):
            decodes = not self.left.isdisjoint(RECORD_PARSERS) and not self.left.isdisjoint(BYTE_DECODERS)
            return DECODES_RECORDS if decodes else whole
        computes = self.computes or any(advice(one) == TENSOR for one in self.left - {"expand_dims", "constant"})
        more = COMPUTES if computes else ""
        if not self.left.isdisjoint(CSV_PARSERS) or self.parses_csv:
            return SERVING_CSV + more
        if whole is not None:
            return SERVING_EXAMPLES + more
        return (SERVING_DEFAULTS if "placeholder_with_default" in self.left else SERVING_JSON) + more


class Reader(cst.CSTVisitor):
    """Visitor that decides how each use of TensorFlow in a file is rewritten.

    `classes` says where premade models come from: ``te`` or ``te.v2``.
    """

    def __init__(self, names: Names, classes: str) -> None:
        super().__init__()
        self.edits = Edits()
        self._names = names
        self._classes = classes
        self._decided: set[cst.CSTNode] = set()
        self._skipped: set[cst.CSTNode] = set()
        self._datasets: set[str] = set()
        self._functions: list[_Function] = []
        self._csv_parsers: set[str] = set()
        self._from_csv = ""
        self._decodes_bytes = False
        self._logging_is_free = True

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Do not visit nodes that will be deleted."""
        return node not in self._skipped and super().on_visit(node)

    # Statements.

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            self._look_at_import(node, _code(alias.name), alias)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = _code(node.module) if node.module is not None else ""
        if isinstance(node.names, cst.ImportStar):
            if without_root(module) is not None:
                self._leave(node, f"from {module} import *", "import the names that the program uses")
                self.edits.kept_roots.add("*")
        else:
            for alias in node.names:
                self._look_at_import(node, f"{module}.{_code(alias.name)}", alias)
        return False

    def _look_at_import(self, node: cst.CSTNode, module: str, alias: cst.ImportAlias) -> None:
        local = _local(alias)
        if module.split(".")[0].startswith("tensorflow_"):
            self._leave(node, module, "this package needs TensorFlow; read or compute the data without it")
        elif local == "logging" and module != "logging" and without_root(module) is None:
            self._logging_is_free = False

    def visit_Module(self, node: cst.Module) -> None:
        self._from_csv = _csv_arguments(node, self._names)
        calls = matchers.findall(node, matchers.Call())
        called = {self._names.of(cst.ensure_type(call, cst.Call).func) for call in calls}
        self._decodes_bytes = any(name is not None and name.name in BYTE_DECODERS for name in called)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        parameters = {one.name.value for one in node.params.params}
        self._functions.append(_Function(len(self.edits.findings), is_model={"features", "mode"} <= parameters))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        function, name = self._functions.pop(), original_node.name.value
        text = function.advice()
        if text is None:
            for outer in self._functions[-1:]:
                outer.left |= function.left
            return
        # Replace the findings about single names by one about the whole function.
        of_layers = _ONLY_IN_TRAINING.values()
        self.edits.findings[function.findings :] = [
            one for one in self.edits.findings[function.findings :] if one.text in of_layers
        ]
        self._leave(original_node, f"def {name}", text)
        if not function.left.isdisjoint(CSV_PARSERS) and function.left.isdisjoint(RECEIVERS):
            self._csv_parsers.add(name)

    def visit_Assign(self, node: cst.Assign) -> None:
        if self._is_dataset(node.value):
            for target in node.targets:
                self._datasets |= {one.name for one in self._names.qualified(target.target)}

    # Names that are not called.

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return self._look_at_name(node)

    def visit_Name(self, node: cst.Name) -> bool:
        return self._look_at_name(node)

    def _look_at_name(self, node: cst.Attribute | cst.Name) -> bool:
        """Decide how a dotted name is rewritten; return whether to visit its parts."""
        if node in self._decided:
            return False
        if not self._names.is_whole(node):
            return True
        name = self._names.of(node)
        if name is None:
            return True
        place, _, attribute = name.name.rpartition(".")
        if attribute in ATTRIBUTES.get(place, ()):
            self._replace(node, f"{RENAMED[place].target}.{attribute}")
        elif name.name in RENAMED and self._is_free(RENAMED[name.name].target):
            rule = RENAMED[name.name]
            if rule.order:
                self._note(node, f"arguments by position mean something else in {rule.target}; give them by name")
            self._rename(node, name, rule)
        else:
            self._leave_name(node, name)
        return False

    def _leave_name(self, node: cst.Attribute | cst.Name, name: TensorFlowName, reason: str | None = None) -> None:
        self._decided.add(node)
        self.edits.kept_roots.add(name.root)
        for function in self._functions[-1:]:
            function.left.add(name.name)
        call = self._names.parent(node)
        if name.name == "data.TextLineDataset" and self._from_csv and isinstance(call, cst.Call) and call.args:
            files = _code(call.args[0].value)
            reason = f"write te.data.Dataset.from_csv({files}, {self._from_csv}) in place of it and of its .map"
        self._leave(node, _code(node), reason or advice(name.name))

    def _rename(self, node: cst.Attribute | cst.Name, name: TensorFlowName, rule: Renamed) -> None:
        target = rule.target
        if BY_GENERATION in target:
            self.edits.uses_generation = True
            target = target.replace(BY_GENERATION, "te" if name.compat else self._classes)
        if rule.note:
            self._note(node, rule.note)
        module = RENAMED[name.variable].target if name.variable in RENAMED else None
        if module is not None and target.startswith(f"{module}."):
            # Keep the program's own variable, such as fc, which stands for the module here after its line is rewritten.
            target = name.root + target.removeprefix(module)
        self._replace(node, target)

    def _replace(self, node: cst.CSTNode, code: str) -> None:
        self._decided.add(node)
        self.edits.replaced[node] = code
        self.edits.imports |= {one for one in ("te", "torch", "logging") if code.split(".")[0] == one}

    def _is_free(self, target: str) -> bool:
        """Return whether the file leaves the name of the module in `target`, such as ``logging``, unused."""
        module = target.split(".")[0]
        if module == "logging" and not self._logging_is_free:
            return False
        return module not in ("logging", "torch") or module not in self._names.bound

    # Calls.

    def visit_Call(self, node: cst.Call) -> bool:
        name = self._names.of(node.func)
        if name is not None and isinstance(node.func, cst.Attribute | cst.Name):
            self._look_at_call(node, node.func, name)
        elif isinstance(node.func, cst.Attribute) and not self._names.is_of_another_package(node.func):
            self._look_at_method(node, node.func)
        elif isinstance(node.func, cst.Name):
            parses = node.func.value in self._csv_parsers
            for function in self._functions[-1:]:
                function.parses_csv |= parses
                function.computes |= not parses and not hasattr(builtins, node.func.value)
        called = _code(node.func).rpartition(".")[2]
        for function in self._functions[-1:] if called in (*_MINIMIZING, "EstimatorSpec") else ():
            reports = called == "EstimatorSpec"
            given = {one.keyword.value if one.keyword else at: _code(one.value) for at, one in enumerate(node.args)}
            if loss := given.get("loss") or given.get(2 if reports else 0):
                function.losses.setdefault(reports, loss)
        return True

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        for function in self._functions[-1:]:
            function.computes |= not isinstance(node.left, cst.BaseString | cst.BaseList | cst.Tuple)

    def _look_at_call(self, node: cst.Call, function: cst.Attribute | cst.Name, name: TensorFlowName) -> None:
        statement = self._names.parent(node)
        line = self._names.parent(statement) if statement is not None else None
        if name.name in _ONLY_IN_TRAINING and not any(
            one.star or (one.keyword is not None and one.keyword.value == "training") for one in node.args
        ):
            self._note(function, _ONLY_IN_TRAINING[name.name])
        if name.name in DELETED and isinstance(statement, cst.Expr) and isinstance(line, cst.SimpleStatementLine):
            self.edits.deleted.add(statement)
            self._skipped |= {function, *node.args}
            self._note(node, "the statement was deleted; nothing takes its place", _code(function))
        elif name.name == "data.Dataset.from_tensor_slices":
            self._from_tensor_slices(node, function, name)
        elif name.name in RENAMED and self._is_free(RENAMED[name.name].target):
            rule = RENAMED[name.name]
            reason = self._edit_arguments(node, function, name, rule)
            if reason is None:
                self._rename(function, name, rule)
                if rule.note_on_value and not isinstance(statement, cst.Expr):
                    self._note(function, rule.note_on_value)
            else:
                self._leave_name(function, name, reason)

    def _from_tensor_slices(self, node: cst.Call, function: cst.Attribute | cst.Name, name: TensorFlowName) -> None:
        value = node.args[0].value if len(node.args) == 1 and not node.args[0].star else None
        if isinstance(value, cst.Tuple) and len(value.elements) == 2:
            edit = _CallEdit({0: cst.Arg(value.elements[0].value)}, [cst.Arg(value.elements[1].value)])
            self.edits.calls[node] = edit
        elif isinstance(value, cst.Dict):
            self.edits.calls[node] = _CallEdit({0: cst.Arg(value)})
        else:
            self._leave_name(function, name)
            return
        self._replace(function, "te.data.Dataset.from_arrays")
        place: cst.CSTNode | None = node
        while place is not None and not isinstance(place, cst.FunctionDef | cst.Module):
            place = self._names.parent(place)
        batches = matchers.Attribute(
            attr=matchers.Name("batch") | matchers.Name("padded_batch") | matchers.Name("apply")
        )
        if place is not None and not matchers.findall(place, matchers.Call(func=batches)):
            self._note(function, _BATCHES)

    def _edit_arguments(
        self, node: cst.Call, function: cst.Attribute | cst.Name, name: TensorFlowName, rule: Renamed
    ) -> str | None:
        """Plan the new arguments of a call, or return why the call is left to the user."""
        edit, order, notes = _CallEdit(), rule.order.split(), []
        given: set[str] = set()
        for position, argument in enumerate(node.args):
            keyword = argument.keyword.value if argument.keyword is not None else None
            if argument.star:
                if argument.star == "*" or rule.order or rule.names or rule.added:
                    return f"write out the arguments of {argument.star}, since they have other names or places here"
                if rule.removed or rule.by_hand:
                    gone = ", ".join((*rule.removed, *rule.by_hand))
                    notes.append(f"{_code(argument.value)} must not hold arguments that do not exist here: {gone}")
                continue
            if keyword is None:
                if rule.positions is not None and position >= rule.positions:
                    return (
                        f"give the arguments after the first {rule.positions} by name"
                        if rule.positions
                        else ("give the arguments by name")
                    )
                if order:
                    if position >= len(order):
                        return "it has more arguments than TensorFlow knows"
                    keyword = order[position]
            changed = argument
            if keyword is not None:
                if keyword in rule.by_hand:
                    if _code(argument.value) not in ("None", "False"):
                        return f"{keyword}: {rule.by_hand[keyword]}"
                    edit.arguments[position] = None
                    self._skipped.add(argument)
                    continue
                if keyword in rule.removed:
                    edit.arguments[position] = None
                    self._skipped.add(argument)
                    if rule.removed[keyword]:
                        notes.append(f"{keyword} was removed: {rule.removed[keyword]}")
                    continue
                keyword = rule.names.get(keyword, keyword)
                given.add(keyword)
                changed = _with_keyword(argument, keyword)
            if keyword in _OPTIMIZER_ARGUMENTS and isinstance(argument.value, cst.Lambda):
                if not self._is_plain_optimizer(argument.value):
                    notes.append(f"{keyword}: a function gets the named parameters, and returns their optimizer")
                else:
                    self.edits.bodies.add(argument.value)
            self._convert_value(argument.value, keyword, rule)
            if changed is not argument:
                edit.arguments[position] = changed
        edit.added = [
            _with_keyword(cst.Arg(cst.parse_expression(code)), one)
            for one, code in rule.added.items()
            if one not in given
        ]
        for note in notes:
            self._note(node, note, _code(function))
        if edit.arguments or edit.added:
            self.edits.calls[node] = edit
        return None

    def _is_plain_optimizer(self, function: cst.Lambda) -> bool:
        """Return whether a lambda has no parameters and makes an optimizer that has a counterpart here."""
        body = function.body
        if function.params.params or not isinstance(body, cst.Call):
            return False
        name = self._names.of(body.func)
        return name is not None and name.name in RENAMED and RENAMED[name.name].target.startswith("te.optim.")

    def _convert_value(self, value: cst.BaseExpression, keyword: str | None, rule: Renamed) -> None:
        """Replace a type of a feature column or of a tf.Example's feature, or an activation of a premade model."""
        name = self._names.of(value)
        if name is None:
            return
        if rule.target.startswith(_TYPED) and name.name in TYPES:
            self._replace(value, TYPES[name.name])
            if name.name == "string" and rule.target.startswith("te.data.") and self._decodes_bytes:
                self._note(value, _BYTES)
        elif BY_GENERATION in rule.target and name.name in ACTIVATIONS and keyword in (*_ACTIVATION_ARGUMENTS, None):
            if not self._is_free(ACTIVATIONS[name.name]):
                return
            self._replace(value, ACTIVATIONS[name.name])

    # Methods, mostly those of tf.data.

    def _look_at_method(self, node: cst.Call, function: cst.Attribute) -> None:
        method = function.attr.value
        keywords = {one.keyword.value for one in node.args if one.keyword is not None}
        is_dataset = self._is_dataset(function.value)
        if method == "get_next" and self._is_returned_iterator(node, function.value):
            return
        if method == "make_one_shot_iterator" and self._is_read_at_once(function):
            return
        if method == "prefetch" and (is_dataset or "buffer_size" in keywords or self._has_autotune(node)):
            self.edits.receivers.add(node)
            self._skipped |= {*node.args}
        elif method in _DATASET_ARGUMENTS and (
            is_dataset or keywords & {*_DATASET_ARGUMENTS[method], "num_parallel_calls", "reshuffle_each_iteration"}
        ):
            self._edit_dataset_method(node, function)
        elif method in METHODS and function not in self._decided and self._names.use_tensorflow:
            self._leave(node, f".{method}", METHODS[method])

    def _edit_dataset_method(self, node: cst.Call, function: cst.Attribute) -> None:
        method, edit = function.attr.value, _CallEdit()
        for position, argument in enumerate(node.args):
            keyword = argument.keyword.value if argument.keyword is not None else None
            if keyword in _DATASET_ONLY_TF or (keyword is None and method == "map" and position == 1):
                edit.arguments[position] = None
                self._skipped.add(argument)
            elif keyword == "reshuffle_each_iteration" or (keyword is None and method == "shuffle" and position == 2):
                if _code(argument.value) not in ("True", "None"):
                    self._leave(
                        node, ".shuffle", "every epoch has another order; for one order call cache after shuffle"
                    )
                edit.arguments[position] = None
            elif keyword in _DATASET_ARGUMENTS[method]:
                edit.arguments[position] = _with_keyword(argument, _DATASET_ARGUMENTS[method][keyword])
        if edit.arguments:
            self.edits.calls[node] = edit
        if method == "map" and not self._maps_lines(node, function):
            self._note(node, _MAP, ".map")

    def _maps_lines(self, node: cst.Call, function: cst.Attribute) -> bool:
        """Return whether ``map`` parses lines of CSV; if so, the advice about its Dataset replaces the call."""
        parsed_here = bool(node.args) and _code(node.args[0].value) in self._csv_parsers
        return bool(self._from_csv) and (parsed_here or self._reads_lines(function.value))

    def _is_returned_iterator(self, node: cst.Call, value: cst.BaseExpression) -> bool:
        """Reduce ``return dataset.make_one_shot_iterator().get_next()`` to ``return dataset``."""
        makes_iterator = (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Attribute)
            and value.func.attr.value == "make_one_shot_iterator"
        )
        if not makes_iterator or not isinstance(self._names.parent(node), cst.Return):
            return False
        assert isinstance(value, cst.Call)
        self.edits.receivers |= {node, value}
        self._decided.add(value.func)
        return True

    def _is_read_at_once(self, function: cst.Attribute) -> bool:
        """Return whether ``.get_next`` follows; the finding about it then covers both calls."""
        call = self._names.parent(function)
        after = self._names.parent(call) if call is not None else None
        return isinstance(after, cst.Attribute) and after.attr.value == "get_next"

    def _has_autotune(self, node: cst.Call) -> bool:
        found = [self._names.of(one.value) for one in node.args]
        return any(name is not None and name.name.endswith("AUTOTUNE") for name in found)

    def _reads_lines(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is a chain of methods of a TextLineDataset."""
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            name = self._names.of(node.func)
            if name is not None:
                return name.name == "data.TextLineDataset"
            node = node.func.value
        return False

    def _is_dataset(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is known to be a Dataset of tf.data."""
        while isinstance(node, cst.Call):
            name = self._names.of(node.func)
            if name is not None:
                return name.name.startswith("data.")
            if not isinstance(node.func, cst.Attribute):
                return False
            node = node.func.value
        return any(one.name in self._datasets for one in self._names.qualified(node)) and isinstance(node, cst.Name)

    # Findings for the user.

    def _leave(self, node: cst.CSTNode, name: str, text: str) -> None:
        self.edits.findings.append(Finding(self._names.line(node), name, text))

    def _note(self, node: cst.CSTNode, text: str, name: str | None = None) -> None:
        self.edits.findings.append(Finding(self._names.line(node), name or _code(node), text, is_note=True))


class Writer(cst.CSTTransformer):
    """Transformer that applies the edits of a file.

    `te` is the name under which the file imports torch_estimator; the statements `imports` replace the import of
    TensorFlow. With `everywhere`, each function imports TensorFlow for itself.
    """

    def __init__(self, edits: Edits, te: str, imports: Sequence[str], *, everywhere: bool) -> None:
        super().__init__()
        self._edits = edits
        self._te = te
        self._imports = imports
        self._everywhere = everywhere
        self._has_imported = False
        self._depth = 0

    def _replaced(self, node: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        code = self._edits.replaced.get(node)
        if code is None:
            return updated
        if code == "te" or code.startswith("te."):
            code = self._te + code[2:]
        return cst.parse_expression(code).with_changes(lpar=updated.lpar, rpar=updated.rpar)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return self._replaced(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._replaced(original_node, updated_node)

    def leave_Lambda(self, original_node: cst.Lambda, updated_node: cst.Lambda) -> cst.BaseExpression:
        return _inside(updated_node, updated_node.body) if original_node in self._edits.bodies else updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if original_node in self._edits.receivers:
            assert isinstance(updated_node.func, cst.Attribute)
            return _inside(updated_node, updated_node.func.value)
        edit = self._edits.calls.get(original_node)
        if edit is None:
            return updated_node
        arguments = []
        for position, argument in enumerate(updated_node.args):
            changed = edit.arguments.get(position, argument)
            if changed is None:
                continue
            if changed.keyword is not None and changed is not argument:
                argument = argument.with_changes(keyword=changed.keyword, equal=changed.equal)
            elif changed is not argument:
                # The argument is split into its elements, which were visited with it.
                argument = argument.with_changes(value=_element(argument.value, 0))
            arguments.append(argument)
        for added in edit.added:
            value = _element(updated_node.args[0].value, 1) if added.keyword is None else added.value
            arguments.append(added.with_changes(value=value))
        last = updated_node.args[-1] if updated_node.args else None
        if not arguments:
            return updated_node.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
        return updated_node.with_changes(args=_with_commas(arguments, last))

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> cst.Expr | cst.RemovalSentinel:
        return cst.RemoveFromParent() if original_node in self._edits.deleted else updated_node

    # Imports.

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._depth -= 1
        return updated_node

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import | cst.RemovalSentinel:
        kept = [one for one in updated_node.names if not self._is_done(_code(one.name), one)]
        if len(kept) == len(updated_node.names):
            return updated_node
        return updated_node.with_changes(names=_last_without_comma(kept)) if kept else cst.RemoveFromParent()

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar) or updated_node.module is None:
            return updated_node
        module = _code(updated_node.module)
        kept = [one for one in updated_node.names if not self._is_done(f"{module}.{_code(one.name)}", one)]
        if len(kept) == len(updated_node.names):
            return updated_node
        return updated_node.with_changes(names=_last_without_comma(kept)) if kept else cst.RemoveFromParent()

    def _is_done(self, module: str, alias: cst.ImportAlias) -> bool:
        """Return whether an import of TensorFlow is no longer needed."""
        return without_root(module) is not None and _local(alias) not in self._edits.kept_roots

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        lines: list[cst.BaseStatement] = [updated_node] if updated_node.body else []
        if imports_tensorflow(original_node) and self._imports and (self._everywhere or not self._depth):
            if self._everywhere or not self._has_imported:
                added = [cst.ensure_type(cst.parse_statement(one), cst.SimpleStatementLine) for one in self._imports]
                if not lines:
                    added[0] = added[0].with_changes(
                        leading_lines=updated_node.leading_lines, trailing_whitespace=updated_node.trailing_whitespace
                    )
                lines += added
            self._has_imported = True
        return cst.FlattenSentinel(lines) if lines else cst.RemoveFromParent()


def advice(name: str) -> str:
    """Return what to write in place of a name of TensorFlow: the advice of the longest known part of it."""
    if name.startswith("python."):
        name = name.rpartition(".")[2]  # A function in a module of TensorFlow's own.
    parts = name.split(".")
    known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = next((ADVICE[one] for one in known if one in ADVICE), None)
    if found is None and len(parts) == 1 and name.islower():
        return TENSOR  # Nearly all functions of TensorFlow itself compute with tensors.
    return found or ANYTHING_ELSE


def _csv_arguments(module: cst.Module, names: Names) -> str:
    """Return the arguments of `Dataset.from_csv` for a file that calls ``decode_csv``, or "" for any other file.

    They are found in what programs do with the fields: ``dict(zip(NAMES, fields))``, and ``features.pop(LABEL)``.
    """
    found = {"column_names": "[…]", "defaults": "[…]", "label": "…"}
    parses = False
    for one in matchers.findall(module, matchers.Call()):
        call = cst.ensure_type(one, cst.Call)
        name = names.of(call.func)
        given = [_code(argument.value) for argument in call.args]
        if name is not None and name.name in CSV_PARSERS:
            parses = True
            keywords = [argument.keyword.value if argument.keyword is not None else None for argument in call.args]
            place = keywords.index("record_defaults") if "record_defaults" in keywords else 1
            found["defaults"] = given[place] if place < len(given) else "[…]"
        elif _code(call.func) == "zip" and given:
            found["column_names"] = given[0]
        elif _code(call.func).endswith(".pop") and given and not isinstance(names.parent(call), cst.Expr):
            found["label"] = given[0]
    return ", ".join(f"{name}={value}" for name, value in found.items()) if parses else ""


def imports_tensorflow(line: cst.SimpleStatementLine) -> bool:
    """Return whether a line imports TensorFlow, or something from it."""
    for statement in line.body:
        if isinstance(statement, cst.Import):
            if any(without_root(_code(alias.name)) is not None for alias in statement.names):
                return True
        elif (
            isinstance(statement, cst.ImportFrom)
            and statement.module is not None
            and without_root(_code(statement.module)) is not None
        ):
            return True
    return False


def _local(alias: cst.ImportAlias) -> str:
    """Return the name that an import binds."""
    return alias.evaluated_alias or alias.evaluated_name.split(".")[0]


def _inside(node: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """Copy the whole expression's parentheses to its part, so that line breaks inside stay legal."""
    return part.with_changes(lpar=[*node.lpar, *part.lpar], rpar=[*part.rpar, *node.rpar])


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _with_keyword(argument: cst.Arg, keyword: str) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return argument.with_changes(keyword=cst.Name(keyword), equal=equal)


def _element(value: cst.BaseExpression, position: int) -> cst.BaseExpression:
    return value.elements[position].value if isinstance(value, cst.Tuple) else value


def _with_commas(arguments: Sequence[cst.Arg], last: cst.Arg | None) -> list[cst.Arg]:
    """Return arguments separated by commas; the end of the list is formatted like `last`, the old last argument."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    between = [one if isinstance(one.comma, cst.Comma) else one.with_changes(comma=comma) for one in arguments[:-1]]
    return [*between, *(_ending_as(last, one) for one in arguments[-1:])]


def _ending_as(last: cst.Arg | None, argument: cst.Arg) -> cst.Arg:
    """Return `argument` with the comma and line break that follow `last`; a comment after `argument` stays."""
    if last is None:
        return argument
    own = argument.comma.whitespace_after if isinstance(argument.comma, cst.Comma) else None
    after = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
    if isinstance(own, cst.ParenthesizedWhitespace) and own.first_line.comment is not None:
        if not isinstance(after, cst.ParenthesizedWhitespace):
            return argument
        return argument.with_changes(comma=cst.Comma(whitespace_after=own.with_changes(last_line=after.last_line)))
    return argument.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)


def _last_without_comma(names: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [*names[:-1], names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
