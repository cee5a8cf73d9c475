"""Exporters: export the model at the end of training, after every evaluation, or whenever it is the best so far."""

from torch_estimator.exporters.best import BestExporter, loss_smaller
from torch_estimator.exporters.exporter import Exporter
from torch_estimator.exporters.final import FinalExporter
from torch_estimator.exporters.latest import LatestExporter

__all__ = ["BestExporter", "Exporter", "FinalExporter", "LatestExporter", "loss_smaller"]
