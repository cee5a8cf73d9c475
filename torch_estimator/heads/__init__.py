"""Heads. A head defines the loss, the metrics and the predictions of a model, and exports the predictions.

To add a head, write a subclass of `Head` in a new file and import it here. `tests/heads/test_own_head.py` has a
complete example.
"""

from torch_estimator.heads.base import Head as Head
from torch_estimator.heads.binary_class import BinaryClassHead as BinaryClassHead
from torch_estimator.heads.classification import ClassificationHead as ClassificationHead
from torch_estimator.heads.loss_reduction import LossReduction as LossReduction
from torch_estimator.heads.multi_class import MultiClassHead as MultiClassHead
from torch_estimator.heads.multi_head import MultiHead as MultiHead
from torch_estimator.heads.multi_label import MultiLabelHead as MultiLabelHead
from torch_estimator.heads.regression import LogisticRegressionHead as LogisticRegressionHead
from torch_estimator.heads.regression import PoissonRegressionHead as PoissonRegressionHead
from torch_estimator.heads.regression import RegressionHead as RegressionHead
from torch_estimator.heads.sequential import SequenceLogits as SequenceLogits
from torch_estimator.heads.sequential import SequentialHeadWrapper as SequentialHeadWrapper
from torch_estimator.heads.serving import Graph as Graph
from torch_estimator.heads.serving import Prediction as Prediction
from torch_estimator.heads.serving import Signature as Signature
from torch_estimator.metrics import Metrics as Metrics
