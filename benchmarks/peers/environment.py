"""Environments of peers: `.bench/<name>`, made when first needed and never mixed with the project's own.

`.venv/bin/python -m benchmarks.peers.environment tensorflow jax` installs those; without names, all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "clients": [
        *("kserve==0.21.0", "tritonclient[grpc,http]==2.73.0", "grpcio-reflection==1.81.1"),
        "openapi-python-client==0.29.1",
    ],
    "jax": ["jax==0.10.2", "optax==0.2.8", "numpy==2.4.6"],
    "keras": ["keras==3.15.1", "tensorflow-cpu==2.21.0"],
    "kserve": ["kserve==0.21.0", "onnxruntime==1.31.1"],
    "lightgbm": ["lightgbm==4.7.0"],
    "litserve": ["litserve==0.2.19", "onnxruntime==1.31.1"],
    "mlserver": ["mlserver==1.7.1", "onnxruntime==1.31.1"],
    "mlflow": ["mlflow==3.17.2"],
    "ray": ["ray[serve]==2.60.0", "onnxruntime==1.31.1"],
    # Its trials train with this package, whose requirements come first.
    "raytune": [
        *("torch==2.13.0", "pyarrow", "safetensors", "lazy_loader", "pathspec", "PyYAML", "mmh3", "onnx", "onnxscript"),
        *("onnxruntime==1.31.1", "pyzmq", "tensorboard", "tqdm", "ray[tune]==2.60.0", "optuna==5.0.0"),
    ],
    "tensorboard": ["tensorboard==2.21.0", "setuptools<81"],
    # tf.estimator's last release; it has wheels for Python 3.9 to 3.11 and is older than NumPy 2.
    "tensorflow": ["tensorflow-cpu==2.15.1", "numpy<2", "setuptools<81"],
    # The stock client of TensorFlow Serving, for tests.
    "tensorflow-serving": ["tensorflow-cpu==2.21.0", "grpcio==1.85.3"],
    "torch": ["torch==2.13.0", "lightning==2.6.6", "accelerate==1.15.0", "numpy==2.4.6"],
    "triton": ["nvidia-pytriton==0.7.0", "onnxruntime==1.31.1"],
    # What pytorch-widedeep imports, whatever part of it is used; apart from the others, since a torchvision without its
    # compiled half breaks Lightning.
    "widedeep": [
        "torch==2.13.0",
        "einops==0.8.2",
        "gensim==4.4.0",
        "numpy==1.26.4",
        "opencv-contrib-python-headless==4.11.0.86",
        "pandas==3.0.6",
        "pillow==13.0.0",
        "scikit-learn==1.9.1",
        "sentencepiece==0.2.3",
        "spacy==3.8.18",
        "torchmetrics==1.9.0",
        "transformers==5.23.0",
        "wrapt==2.5.2",
    ],
}
# Installed last, as they are. torchvision has no wheel for a PyTorch without CUDA outside PyTorch's own index, and
# asking pip for one replaces torch itself; pytorch-widedeep wants torchvision, and OpenCV with a display. TensorFlow
# Serving's client wants a second TensorFlow.
_WITHOUT_DEPENDENCIES: Mapping[str, Sequence[str]] = {
    "tensorflow-serving": ["tensorflow-serving-api==2.21.0"],
    "widedeep": ["torchvision==0.28.0", "pytorch-widedeep==1.7.0"],
}
# Where the project's own Python is too new for a peer, or, for Triton's wheel, has no shared library as Debian's has.
_INTERPRETERS: Mapping[str, str] = {"tensorflow": "python3.11", "triton": "/usr/bin/python3"}


def python_of(name: str) -> Path:
    """The interpreter of `.bench/<name>`, which is installed where it is missing or was made of other requirements."""
    return python_with(name, list(REQUIREMENTS[name]))


def is_installed(name: str) -> bool:
    """Whether `.bench/<name>` is there with the requirements of today."""
    done = folder(name) / "requirements.txt"
    return done.is_file() and done.read_text() == "\n".join(_wanted(name, REQUIREMENTS[name]))


def python_with(name: str, requirements: list[str]) -> Path:
    """The interpreter of `.bench/<name>`, in which the requirements are installed."""
    home = folder(name)
    python, done = home / "bin" / "python", home / "requirements.txt"
    wanted = "\n".join(_wanted(name, requirements))
    if not done.is_file() or done.read_text() != wanted:
        print(f"Installing {', '.join(requirements)} into {home}.", file=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([_interpreter(name), "-m", "venv", "--clear", str(home)], check=True, timeout=300)
        subprocess.run([*pip, *requirements], check=True, timeout=1800)
        if name in _WITHOUT_DEPENDENCIES:
            subprocess.run([*pip, "--no-deps", *_WITHOUT_DEPENDENCIES[name]], check=True, timeout=600)
        done.write_text(wanted)
    return python


def _wanted(name: str, requirements: Sequence[str]) -> list[str]:
    return [*requirements, *_WITHOUT_DEPENDENCIES.get(name, ())]


def folder(name: str) -> Path:
    """`TE_BENCH_DIR` names another place for all of them, such as one that several checkouts share."""
    return Path(os.environ.get("TE_BENCH_DIR") or ROOT / ".bench") / name


def _interpreter(name: str) -> str:
    wanted = _INTERPRETERS.get(name)
    return (wanted and shutil.which(wanted)) or sys.executable


if __name__ == "__main__":
    for environment in sys.argv[1:] or REQUIREMENTS:
        python_of(environment)
