"""TFRecord files and tf.Examples, without TensorFlow: records, features, and many records parsed at once.

`records` frames records, `features` describes the features of a tf.Example, `parser` reads many serialized tf.Examples
into arrays, and `encoder` writes them. `engine` chooses between ``examples.c``, which the C compiler of the machine
compiles in a fraction of a second, and `in_python`, which has the same functions. Nothing here imports torch.
"""
