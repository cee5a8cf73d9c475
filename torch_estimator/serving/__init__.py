"""Server of exports: versions, batching, TensorFlow Serving's REST and the Open Inference Protocol.

``options.py`` has the settings, ``catalog.py`` finds and loads versions, ``batcher.py`` runs requests together,
``service.py`` ties these together for the protocols (``tensorflow_rest.py``, ``open_inference.py`` and, over gRPC,
``grpc_server.py`` and ``tensorflow_grpc.py``; all but the first share ``tensors.py``), and ``app.py`` is the ASGI
application.

``worker.py`` is a process that serves, with ``http_server.py`` for the connections. For several of them, ``nodes.py``
is the parent, and ``scoreboard.py`` what they know of each other. ``config.py`` reads the file of settings, and
``reload.py`` reads it again.
"""
