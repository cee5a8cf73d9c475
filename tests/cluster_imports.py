# ruff: noqa: F401
"""What processes of test clusters import, imported once for all that are forked from here; no thread is started."""

import pandas
import pyarrow
import tensorboard.compat.proto.event_pb2
import torch._dynamo
import torch.distributed
import torch.distributed.fsdp
import torch.distributed.tensor
import zmq

import torch_estimator.distributed.group
import torch_estimator.estimator
import torch_estimator.executors.train_and_evaluate
import torch_estimator.feature_column
import torch_estimator.from_module.module_model
import torch_estimator.models
import torch_estimator.models.dnn_linear_combined
import torch_estimator.parameter_server.push_pull
import torch_estimator.parameter_server.server
import torch_estimator.strategies.data_parallel_steps
import torch_estimator.strategies.fully_sharded_steps
