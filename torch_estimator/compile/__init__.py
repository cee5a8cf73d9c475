"""Compiled training steps: traced once, compiled in a background process, and cached for later runs.

In a step of a small model, Python takes longer than the computation itself. So on a CPU with Linux the whole step
(forward pass, loss, gradients, update) is compiled to a library of machine code, and one call of a C function takes up
to 128 steps.
The life of a compiled step, in order:

1. `runner_choice` picks the runner of a training by ``RunConfig.compile`` and the device: Python
   (`torch_estimator.train.runner.EagerRunner`), `compiled_runner`, or, on GPUs and on systems other than Linux,
   `torch_compile_runner`.
2. `compiled_runner` receives the batches. It takes steps in Python while there is no compiled step. Each block of
   batches is described by `batch_layout`: names, shapes, strides and dtypes, which a compiled step is specific to.
3. `policy` decides which layouts are compiled, and whether the training is long enough for compiling to pay.
4. `step_compiler` computes the cache key with `key`: a hash of the values, code and sources that the step is made of.
   Together with the batch layout and the `environment` (CPU, compiler, versions, threads) it names an entry of the
   cache.
5. `code_cache` returns the entry if an earlier run has left one. It is used only if no other user can change it,
   because the entry is machine code.
6. Otherwise `compilation` forks a process in which the rest happens, while the training goes on in Python:
   a. `tracing` takes two real steps, then records one as a graph of tensor operations, twice. `trace_checks` refuses
      whatever a graph cannot repeat, `replacements` expresses a few operators by others that Inductor computes right,
      and `traced_update` makes the optimizer's update part of the graph.
   b. `building` lets AOTInductor generate C++ code of the graph. `generated_code` compiles it with a class of this
      project (``step_model.h``) in place of PyTorch's, with a loop over many steps (``run_steps.h``), and on some
      processors with matrix products by oneDNN (``matrix_product.h``). From the second step of a machine on, it
      finds its headers precompiled (`precompiled_headers`).
   c. The process moves the library to the cache. It outlives the training if that ends first.
7. `compiled_step` loads the library and takes steps with it, several per call and without Python in between.
8. `proof` takes the first batches in Python and compiled, and compares all that the step changes. Only then is the
   compiled step used; if they differ, training goes on in Python. They are compared again now and then, and before
   checkpoints, at most every ten seconds. If they differ there, nothing is saved and training ends with an error.
9. After hooks or other code of the user has run, `change_detector` finds out whether the model has changed. Then
   `compiled_runner` computes the key again, and begins again at 2 if it differs, and at 8 if not.
10. A step that cannot be compiled runs in Python, and one warning says why.

For the user, compiled steps differ from steps in Python only in speed. Losses and weights agree up to float32 rounding.
Random numbers come from the same generator in the same order. If a compiled step fails, Python repeats its forward pass
and raises the error.
"""
