"""Registry of models: numbered versions of exports in a directory, a default version, labels, and a history of changes.

`registry` has the operations, `changes` makes each of them atomic, `manifest` describes a version, and `check` tries an
export before it becomes a version. Nothing here needs torch.
"""

from torch_estimator.registry.changes import Change, ModelInfo
from torch_estimator.registry.manifest import VersionInfo
from torch_estimator.registry.registry import Registry

__all__ = ["Change", "ModelInfo", "Registry", "VersionInfo"]
