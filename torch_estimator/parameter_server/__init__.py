"""The process that holds parameters for those who train: numpy and ZeroMQ, no torch."""
