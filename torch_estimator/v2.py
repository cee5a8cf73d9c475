"""The premade models with the defaults of TensorFlow 2.x, where ``tf.estimator.DNNClassifier`` means the V2 class.

They have the arguments of the classes in `torch_estimator`, which have the defaults of TensorFlow 1.x, and differ in:

* ``loss_reduction``: the losses of a batch are divided by their number. In TF 1.x they are summed up.
* ``optimizer`` of a deep model: a name stands for learning rate 0.001, or 0.01 for ``"SGD"``. In TF 1.x it is 0.05.
* Optimizers by name have Keras's formulas: epsilon of ``"Adam"`` is 1e-7, and the mean square of ``"RMSProp"``
  starts at 0. There is no ``"AdamW"``.
* ``auc_precision_recall`` of classifiers is interpolated, as in the heads.
"""

from torch_estimator.models import baseline, dnn, dnn_linear_combined, linear
from torch_estimator.models.canned_model_fn import premade
from torch_estimator.models.generations import V2

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
]


@premade()
class DNNClassifier(dnn.DNNClassifier):
    """Classifier with hidden layers on feature columns; see `torch_estimator.DNNClassifier`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [-1.0, -0.5, 0.5, 1.0]}, [0, 0, 1, 1]
    >>> config = te.RunConfig("memory://v2.DNNClassifier", random_seed=1)
    >>> estimator = te.v2.DNNClassifier(hidden_units=[8], feature_columns=[x], config=config)
    >>> 0 < estimator.train(lambda: data, steps=20).evaluate(lambda: data)["loss"] < 1  # the mean, not the sum
    True
    """

    _generation = V2


@premade()
class DNNRegressor(dnn.DNNRegressor):
    """Regression model with hidden layers on feature columns; see `torch_estimator.DNNRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> config = te.RunConfig("memory://v2.DNNRegressor", random_seed=1)
    >>> estimator = te.v2.DNNRegressor([8], [x], config=config, optimizer=te.optim.Adagrad(lr=0.5))
    >>> estimator.train(lambda: data, steps=100).evaluate(lambda: data)["average_loss"] < 1.0
    True
    """

    _generation = V2


@premade()
class DNNEstimator(dnn.DNNEstimator):
    """Model with hidden layers on feature columns, for any head; see `torch_estimator.DNNEstimator`.

    >>> hour = fc.numeric_column("hour", normalizer_fn=lambda hour: hour / 24)
    >>> data = {"hour": [3.0, 12.0, 20.0]}, [0, 4, 9]
    >>> estimator = te.v2.DNNEstimator(te.PoissonRegressionHead(), [8], [hour], model_dir="memory://v2.DNNEstimator")
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

    _generation = V2


@premade()
class LinearClassifier(linear.LinearClassifier):
    """Logistic regression on feature columns; see `torch_estimator.LinearClassifier`.

    >>> color = fc.categorical_column_with_vocabulary_list("color", ["red", "green", "blue"])
    >>> data = {"color": ["red", "green", "blue", "blue"]}, [0, 1, 2, 2]
    >>> estimator = te.v2.LinearClassifier([color], model_dir="memory://v2.LinearClassifier", n_classes=3)
    >>> estimator.train(lambda: data, steps=20).evaluate(lambda: data)["accuracy"]
    1.0
    """

    _generation = V2


@premade()
class LinearRegressor(linear.LinearRegressor):
    """Linear regression on feature columns; see `torch_estimator.LinearRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.v2.LinearRegressor([x], model_dir="memory://v2.LinearRegressor", optimizer=te.optim.SGD(lr=0.1))
    >>> estimator = estimator.train(lambda: data, steps=200)
    >>> estimator.get_variable_value("linear/linear_model/x/weights").round(1)
    array([[2.]], dtype=float32)
    """

    _generation = V2


@premade()
class LinearEstimator(linear.LinearEstimator):
    """Linear model on feature columns, for any head; see `torch_estimator.LinearEstimator`.

    >>> clicks = fc.numeric_column("clicks")
    >>> data = {"clicks": [0.0, 1.0, 2.0]}, [0.0, 0.5, 0.9]
    >>> estimator = te.v2.LinearEstimator(te.LogisticRegressionHead(), [clicks], "memory://v2.LinearEstimator")
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

    _generation = V2


@premade()
class DNNLinearCombinedClassifier(dnn_linear_combined.DNNLinearCombinedClassifier):
    """Wide and deep classifier; see `torch_estimator.DNNLinearCombinedClassifier`.

    >>> job = fc.categorical_column_with_hash_bucket("job", 10)
    >>> data = {"job": ["clerk", "farmer", "clerk", "farmer"]}, [0, 1, 0, 1]
    >>> estimator = te.v2.DNNLinearCombinedClassifier(
    ...     "memory://v2.DNNLinearCombinedClassifier",
    ...     linear_feature_columns=[job],
    ...     dnn_feature_columns=[fc.embedding_column(job, dimension=2)],
    ...     dnn_hidden_units=[8],
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["global_step"]
    5
    """

    _generation = V2


@premade()
class DNNLinearCombinedRegressor(dnn_linear_combined.DNNLinearCombinedRegressor):
    """Wide and deep regression model; see `torch_estimator.DNNLinearCombinedRegressor`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [1.0, 3.0, 5.0, 7.0]
    >>> estimator = te.v2.DNNLinearCombinedRegressor(
    ...     "memory://v2.DNNLinearCombinedRegressor",
    ...     linear_feature_columns=[x],
    ...     dnn_feature_columns=[x],
    ...     dnn_hidden_units=[8],
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["label/mean"]
    4.0
    """

    _generation = V2


@premade()
class DNNLinearCombinedEstimator(dnn_linear_combined.DNNLinearCombinedEstimator):
    """Wide and deep model for any head; see `torch_estimator.DNNLinearCombinedEstimator`.

    >>> x = fc.numeric_column("x")
    >>> data = {"x": [0.0, 1.0, 2.0, 3.0]}, [0, 1, 3, 4]
    >>> estimator = te.v2.DNNLinearCombinedEstimator(
    ...     te.PoissonRegressionHead(), "memory://v2.DNNLinearCombinedEstimator", linear_feature_columns=[x]
    ... )
    >>> estimator.train(lambda: data, steps=5).evaluate(lambda: data)["label/mean"]
    2.0
    """

    _generation = V2


@premade()
class BaselineClassifier(baseline.BaselineClassifier):
    """Classifier that ignores the features; see `torch_estimator.BaselineClassifier`.

    >>> data = {"x": [1.0, 2.0, 3.0, 4.0]}, [0, 1, 1, 1]
    >>> estimator = te.v2.BaselineClassifier("memory://v2.BaselineClassifier")
    >>> next(estimator.train(lambda: data, steps=500).predict(lambda: data))["probabilities"].round(2)
    array([0.25, 0.75], dtype=float32)
    """

    _generation = V2


@premade()
class BaselineRegressor(baseline.BaselineRegressor):
    """Regression model that ignores the features; see `torch_estimator.BaselineRegressor`.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [10.0, 20.0, 60.0]
    >>> estimator = te.v2.BaselineRegressor("memory://v2.BaselineRegressor", optimizer=te.optim.SGD(lr=0.1))
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([30.], dtype=float32)
    """

    _generation = V2


@premade()
class BaselineEstimator(baseline.BaselineEstimator):
    """Baseline model for any head; see `torch_estimator.BaselineEstimator`.

    >>> data = {"x": [1.0, 2.0, 3.0]}, [2, 3, 4]
    >>> estimator = te.v2.BaselineEstimator(te.PoissonRegressionHead(), "memory://v2.BaselineEstimator")
    >>> next(estimator.train(lambda: data, steps=50).predict(lambda: data))["predictions"].round()
    array([3.], dtype=float32)
    """

    _generation = V2
