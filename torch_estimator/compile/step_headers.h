/* All headers of a compiled step in one place, so that precompiled_headers.py can compile them once for all steps. */

#ifndef TORCH_ESTIMATOR_STEP_HEADERS
#define TORCH_ESTIMATOR_STEP_HEADERS

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/device_utils.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/cpp_prefix.h>
#include <torch/csrc/inductor/cpp_wrapper/device_internal/cpu.h>

#endif
