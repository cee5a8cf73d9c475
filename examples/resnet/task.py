"""Trains ResNet-50 on generated images and says how fast: `python -m examples.resnet.task --help`."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

import torch_estimator as te
from torch_estimator import errors

from ..options import COMPILE, at_least, positive
from .resnet import ResNet

# Enough that batches differ, few enough to lie in memory.
BATCHES = 4


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked as far as argparse can."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.resnet.task",
        description="Train ResNet-50 on generated images and say how fast.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    on_gpu = torch.cuda.is_available()
    add("--job-dir", default="runs/resnet", help="directory or URL for checkpoints and summaries")
    add("--train-steps", type=at_least(1), default=500 if on_gpu else 10, help="train up to this step")
    add("--batch-size", type=at_least(2), default=256 if on_gpu else 8, help="images in a step")
    add("--image-size", type=at_least(32), default=224 if on_gpu else 64, help="height and width")
    add("--classes", type=at_least(3), default=1000 if on_gpu else 10, help="kinds of images")
    add("--blocks", type=at_least(1), nargs=4, default=[3, 4, 6, 3], help="blocks of the four stages")
    add("--learning-rate", type=positive, default=0.1, help="highest one, for 256 images, of a one-cycle schedule")
    add(
        "--precision",
        choices=("float32", "bf16"),
        default="bf16" if on_gpu else "float32",
        help="of the forward and backward pass",
    )
    add("--compile", choices=COMPILE, default="auto", help="whether the training step is compiled; auto: where it pays")
    add("--seed", type=at_least(0), default=1, help="of the initial weights and the images")
    add("--verbosity", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO", help="of the log")
    return parser.parse_args(arguments)


def generated(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """A few batches of noise, each image brightened by its class in one of its channels."""
    draw = np.random.default_rng(args.seed)
    count = BATCHES * args.batch_size
    labels = draw.integers(0, args.classes, count)
    images = draw.normal(size=(count, 3, args.image_size, args.image_size)).astype(np.float32)
    images[:, 0] += (labels / args.classes).astype(np.float32)[:, None, None]
    return torch.from_numpy(images), torch.from_numpy(labels)


class Speed(te.Hook):
    """Measures images per second from the second tenth of the steps on."""

    def __init__(self, steps: int, batch_size: int) -> None:
        self.every_n_steps = max(1, steps // 10)
        self.images_per_second = 0.0
        self._batch_size = batch_size
        self._start: tuple[int, float] | None = None

    def after_step(self, context: te.RunContext) -> None:
        context.loss  # noqa: B018  # waits for the device
        now = time.perf_counter()
        if self._start is None:
            self._start = (context.global_step, now)
        else:
            step, then = self._start
            self.images_per_second = (context.global_step - step) * self._batch_size / (now - then)


def build_estimator(args: argparse.Namespace) -> te.Estimator:
    """ResNet with a head, momentum and a one-cycle schedule."""
    peak = args.learning_rate * args.batch_size / 256

    def optimizer(named: object) -> torch.optim.lr_scheduler.LRScheduler:
        momentum = torch.optim.SGD(named, lr=peak, momentum=0.9, weight_decay=5e-5)  # type: ignore[arg-type]
        return torch.optim.lr_scheduler.OneCycleLR(momentum, max_lr=peak, total_steps=args.train_steps)

    torch.manual_seed(args.seed)
    return te.Estimator.from_module(
        ResNet(args.blocks, args.classes),
        head=te.heads.MultiClassHead(args.classes),
        optimizer=optimizer,
        model_dir=args.job_dir,
        config=te.RunConfig(
            random_seed=args.seed,
            compile=COMPILE[args.compile],
            mixed_precision="bf16" if args.precision == "bf16" else None,
            save_checkpoints_steps=args.train_steps,
            log_step_count_steps=max(1, args.train_steps // 10),
        ),
    )


def run(args: argparse.Namespace) -> None:
    """Trains, and prints speed and loss."""
    images, labels = generated(args)
    estimator = build_estimator(args)
    speed = Speed(args.train_steps, args.batch_size)
    estimator.train(
        lambda: te.data.Dataset.from_arrays(images.numpy(), labels.numpy()).repeat().batch(args.batch_size),
        hooks=[speed],
        max_steps=args.train_steps,
    )
    metrics = estimator.evaluate(
        lambda: te.data.Dataset.from_arrays(images.numpy(), labels.numpy()).batch(args.batch_size)
    )
    speed_reached = f"{speed.images_per_second:.1f} images/s" if speed.images_per_second else "no step was left to take"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    print(
        f"reached at step {metrics['global_step']}: loss {metrics['average_loss']:.3f} on the generated images; "
        f"{speed_reached} of {args.image_size} x {args.image_size} in {args.precision} "
        f"on {device}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    args = parse(arguments)
    logging.getLogger("torch_estimator").setLevel(args.verbosity)
    with errors.exit_on_user_error():
        run(args)


if __name__ == "__main__":
    main()
