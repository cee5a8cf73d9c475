"""Transform of the columns of the layers in a module, which an Estimator makes by itself."""

from __future__ import annotations

from torch import nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.dense_features import DenseFeatures
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.feature_column.weighted_sum import LinearModel


class LayersTransform(FeatureTransform):
    """Transform of the columns of several `DenseFeatures` and `LinearModel`s.

    The keys of the features of each layer begin with its name.
    """

    def __init__(self, layers: list[DenseFeatures | LinearModel]) -> None:
        self.linear = self.dnn = self.sequence = None
        columns = {f"{layer.name} column": layer.columns or () for layer in layers}
        self._plan(columns, [layer.layout for layer in layers])


def transform_of(module: nn.Module, given: FeatureTransform | None) -> FeatureTransform | None:
    """Return the transform of a model: that of the layers in its module that are made of columns, or the given one."""
    layers = [
        one for one in module.modules() if isinstance(one, DenseFeatures | LinearModel) and one.columns is not None
    ]
    if not layers or isinstance(given, LayersTransform):
        return given
    if given is not None:
        raise InvalidValueError(
            f"the module has the layer {layers[0].name!r} made of columns, which are converted without a transform; "
            "give no transform, or make the layer of a layout of that transform."
        )
    names: set[str] = set()
    for layer in layers:
        if layer.name in names:
            raise InvalidValueError(
                f"two layers of the module have the name {layer.name!r}; give one of them another: "
                f'{type(layer).__name__}(columns, name="{layer.name}_1").'
            )
        names.add(layer.name)
    return LayersTransform(layers)
