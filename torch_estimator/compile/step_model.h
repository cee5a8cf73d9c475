/* What surrounds the generated C++ code of a compiled step: the class that the code belongs to, and its C interface.

   generated_code.py puts this file in place of the classes that Inductor's output includes. Those also manage constants,
   devices and pools of models, which a training step has none of. They take g++ three seconds to compile, and this file
   takes half a second. The names are those of PyTorch, so that the generated code and the caller (run_steps.h) work
   with either.

   There is no lock around a run, unlike in PyTorch's classes: each CompiledStep of Python makes a model of its own, and
   only the thread that trains calls it. The generated code has no variables outside of the model. */

#include <array>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/device_utils.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/cpp_wrapper/device_internal/cpu.h>

/* Rounds up to a multiple of 64 bytes, for buffers that share memory. */
[[maybe_unused]] static inline int64_t align(int64_t n_bytes) {
    return (n_bytes + 64 - 1) & -64;
}

/* Inductor's code can check the layouts of its inputs. CompiledStep has already done so, once for all steps. */
#define __check_inputs_outputs(inputs, outputs)
[[maybe_unused]] static constexpr bool _check_aoti_runtime_check_inputs_env() {
    return false;
}

namespace torch::aot_inductor {

class AOTInductorModelKernelsBase {
  public:
    virtual ~AOTInductorModelKernelsBase() = default;
};

class AOTInductorModel {
  public:
    AOTInductorModel();
    ~AOTInductorModel() {
        for (const Kept &one : kept_)
            if (one.tensor != nullptr)
                aoti_torch_delete_tensor_object(one.tensor);
    }
    void run_impl(AtenTensorHandle *inputs, AtenTensorHandle *outputs, DeviceStreamType stream,
                  AOTIProxyExecutorHandle proxy_executor);

  private:
    /* A tensor that a place in the generated code makes, kept for the next step. */
    struct Kept {
        const void *memory;
        AtenTensorHandle tensor;
    };

    /* Returns a new handle of the tensor that place `number` has kept if the tensor is in the same memory as in the
       step before, and otherwise makes and keeps a new tensor. A new handle takes a fifth of the time of a new tensor.
       Shapes and dtypes are the same in every step, and each place runs once in a step (generated_code.py sees to it).
       What a kept tensor is a view of may be gone by the next step. That is safe. If its memory belongs to an operator
       of the step, the kept tensor keeps this memory, so no other tensor can get its address. Other memory, such as that
       of a parameter or a batch, is used only while an input of the current step has the same address. */
    template <typename Make>
    AOTITorchError kept(size_t number, const void *memory, AtenTensorHandle *made, const Make &make) {
        if (number >= kept_.size())
            kept_.resize(number + 1);
        Kept &one = kept_[number];
        if (one.tensor == nullptr || one.memory != memory) {
            if (one.tensor != nullptr)
                aoti_torch_delete_tensor_object(one.tensor);
            one = {memory, nullptr};
            if (AOTITorchError error = make(&one.tensor); error != AOTI_TORCH_SUCCESS) {
                one.tensor = nullptr;
                return error;
            }
        }
        return aoti_torch_new_tensor_handle(one.tensor, made);
    }

    AOTITorchError empty(size_t number, int64_t n_dims, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                         int32_t device_type, int32_t device, AtenTensorHandle *made) {
        auto make = [&](AtenTensorHandle *tensor) {
            return aoti_torch_empty_strided(n_dims, sizes, strides, dtype, device_type, device, tensor);
        };
        /* Rows of bytes are the memory that buffers share. Others are kept by nobody, such as the loss. */
        return n_dims == 1 && dtype == aoti_torch_dtype_uint8() ? kept(number, nullptr, made, make) : make(made);
    }

    AOTITorchError buffer(size_t number, AtenTensorHandle pool, int64_t offset, int32_t dtype, int64_t n_dims,
                          const int64_t *sizes, const int64_t *strides, AtenTensorHandle *made) {
        return kept(number, get_data_ptr_wrapper(pool), made, [&](AtenTensorHandle *tensor) {
            return aoti_torch__alloc_from_pool(pool, offset, dtype, n_dims, sizes, strides, tensor);
        });
    }

    AtenTensorHandle view(size_t number, AtenTensorHandle of, int64_t n_dims, const int64_t *sizes,
                          const int64_t *strides, int64_t offset) {
        AtenTensorHandle made = nullptr;
        AOTI_TORCH_ERROR_CODE_CHECK(kept(number, get_data_ptr_wrapper(of), &made, [&](AtenTensorHandle *tensor) {
            return aoti_torch__reinterpret_tensor(of, n_dims, sizes, strides, offset, tensor);
        }));
        return made;
    }

    [[maybe_unused]] int32_t device_idx_ = -1;
    std::unique_ptr<AOTInductorModelKernelsBase> kernels_;
    std::vector<Kept> kept_;
};

/* Switches gradients off, which operators with an output argument require, and back to what was before. */
class WithoutGradients {
  public:
    WithoutGradients() : before_(aoti_torch_grad_mode_is_enabled()) {
        aoti_torch_grad_mode_set_enabled(false);
    }
    ~WithoutGradients() {
        aoti_torch_grad_mode_set_enabled(before_);
    }

  private:
    bool before_;
};

} // namespace torch::aot_inductor

extern "C" {

AOTIRuntimeError AOTInductorModelContainerCreateWithDevice(AOTInductorModelContainerHandle *made, size_t, const char *,
                                                           const char *) {
    *made = reinterpret_cast<AOTInductorModelContainerHandle>(new torch::aot_inductor::AOTInductorModel());
    return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerDelete(AOTInductorModelContainerHandle container) {
    delete reinterpret_cast<torch::aot_inductor::AOTInductorModel *>(container);
    return AOTI_RUNTIME_SUCCESS;
}

/* Takes ownership of the handles of the inputs, and gives that of the outputs. */
AOTIRuntimeError AOTInductorModelContainerRun(AOTInductorModelContainerHandle container, AtenTensorHandle *inputs,
                                              size_t, AtenTensorHandle *outputs, size_t, AOTInductorStreamHandle,
                                              AOTIProxyExecutorHandle) {
    torch::aot_inductor::WithoutGradients guard;
    try {
        reinterpret_cast<torch::aot_inductor::AOTInductorModel *>(container)->run_impl(inputs, outputs, nullptr,
                                                                                       nullptr);
    } catch (const std::exception &error) {
        std::cerr << "Error: " << error.what() << '\n';
        return AOTI_RUNTIME_FAILURE;
    } catch (...) {
        std::cerr << "Unknown exception occurred.\n";
        return AOTI_RUNTIME_FAILURE;
    }
    return AOTI_RUNTIME_SUCCESS;
}

} // extern "C"

/* The generated code below makes its tensors with these functions. __COUNTER__ gives each place a number. */
#define aoti_torch_empty_strided(...) this->empty(__COUNTER__, __VA_ARGS__)
#define aoti_torch__alloc_from_pool(...) this->buffer(__COUNTER__, __VA_ARGS__)
#define reinterpret_tensor_wrapper(...) this->view(__COUNTER__, __VA_ARGS__)
