/* What surrounds the generated C++ code of a compiled step: the class that the code belongs to, and its C interface.

   generated_code.py puts this file in place of the classes that Inductor's output includes. Those also manage constants,
   devices and pools of models, which a training step has none of. They take g++ three seconds to compile, and this file
   takes half a second. The names are those of PyTorch, so that the generated code and the caller (run_steps.h) work
   with either.

   There is no lock around a run, unlike in PyTorch's classes: each CompiledStep of Python makes a model of its own, and
   only the thread that trains calls it. The generated code has no variables outside of the model. */

#include "step_headers.h"

#include "matrix_product.h"

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

/* A tensor in the generated code, in place of most of PyTorch's RAIIAtenTensorHandle. It has no destructor: the model
   frees, at the end of a run, what the code has not reset. Destructors would free a hundred tensors wherever an
   exception may leave the code, which takes g++ 0.3 seconds to compile. Copies share the place of the handle, so that
   nothing is freed twice. */
class StepTensor {
  public:
    explicit StepTensor(AtenTensorHandle *place) : place_(place) {
    }
    operator AtenTensorHandle() const {
        return *place_;
    }
    AtenTensorHandle get() const {
        return *place_;
    }
    AtenTensorHandle release() {
        return std::exchange(*place_, nullptr);
    }
    [[gnu::noinline]] void reset() {
        if (AtenTensorHandle handle = release(); handle != nullptr)
            aoti_torch_delete_tensor_object(handle);
    }
    [[gnu::noinline]] void *data_ptr() const {
        return get_data_ptr_wrapper(*place_);
    }

  private:
    AtenTensorHandle *place_;
};

class AOTInductorModelKernelsBase {
  public:
    virtual ~AOTInductorModelKernelsBase() = default;
};

class AOTInductorModel {
  public:
    AOTInductorModel();
    ~AOTInductorModel() {
        free();
        for (const Kept &one : kept_)
            if (one.tensor != nullptr)
                aoti_torch_delete_tensor_object(one.tensor);
    }
    void run_impl(AtenTensorHandle *inputs, AtenTensorHandle *outputs, DeviceStreamType stream,
                  AOTIProxyExecutorHandle proxy_executor);

    /* Frees the tensors of a run. */
    void free() {
        while (n_owned_ > 0)
            StepTensor(&owned_[--n_owned_]).reset();
    }

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

    [[gnu::noinline]] AOTITorchError empty(size_t number, int64_t n_dims, const int64_t *sizes, const int64_t *strides,
                                           int32_t dtype, int32_t device_type, int32_t device,
                                           AtenTensorHandle *made) {
        auto make = [&](AtenTensorHandle *tensor) {
            return aoti_torch_empty_strided(n_dims, sizes, strides, dtype, device_type, device, tensor);
        };
        /* Rows of bytes are the memory that buffers share. Others are kept by nobody, such as the loss. */
        return n_dims == 1 && dtype == aoti_torch_dtype_uint8() ? kept(number, nullptr, made, make) : make(made);
    }

    [[gnu::noinline]] AOTITorchError buffer(size_t number, AtenTensorHandle pool, int64_t offset, int32_t dtype,
                                            int64_t n_dims, const int64_t *sizes, const int64_t *strides,
                                            AtenTensorHandle *made) {
        return kept(number, get_data_ptr_wrapper(pool), made, [&](AtenTensorHandle *tensor) {
            return aoti_torch__alloc_from_pool(pool, offset, dtype, n_dims, sizes, strides, tensor);
        });
    }

    [[gnu::noinline]] AtenTensorHandle view(size_t number, AtenTensorHandle of, int64_t n_dims, const int64_t *sizes,
                                            const int64_t *strides, int64_t offset) {
        AtenTensorHandle made = nullptr;
        AOTI_TORCH_ERROR_CODE_CHECK(kept(number, get_data_ptr_wrapper(of), &made, [&](AtenTensorHandle *tensor) {
            return aoti_torch__reinterpret_tensor(of, n_dims, sizes, strides, offset, tensor);
        }));
        return made;
    }

    /* Takes a handle, to free it at the end of the run at the latest. */
    [[gnu::noinline]] StepTensor owned(AtenTensorHandle handle) {
        if (n_owned_ == owned_.size())
            owned_.emplace_back();
        AtenTensorHandle &place = owned_[n_owned_++];
        place = handle;
        return StepTensor(&place);
    }

    /* A tensor that has an owner would be freed twice. */
    template <typename Owner> StepTensor owned(const Owner &) = delete;

    std::vector<StepTensor> owned(AtenTensorHandle *handles, size_t n) {
        std::vector<StepTensor> tensors;
        tensors.reserve(n);
        for (size_t i = 0; i < n; i++)
            tensors.push_back(owned(handles[i]));
        return tensors;
    }

    [[maybe_unused]] int32_t device_idx_ = -1;
    std::unique_ptr<AOTInductorModelKernelsBase> kernels_;
    std::vector<Kept> kept_;
    /* A deque does not move the handles when it grows. */
    std::deque<AtenTensorHandle> owned_;
    size_t n_owned_ = 0;
};

/* Switches gradients off for a run, which operators with an output argument require; restores them and frees the run's
   tensors at its end. */
class Run {
  public:
    explicit Run(AOTInductorModel *model) : model(model), gradients_(aoti_torch_grad_mode_is_enabled()) {
        aoti_torch_grad_mode_set_enabled(false);
    }
    ~Run() {
        model->free();
        aoti_torch_grad_mode_set_enabled(gradients_);
    }
    AOTInductorModel *model;

  private:
    bool gradients_;
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
    torch::aot_inductor::Run run(reinterpret_cast<torch::aot_inductor::AOTInductorModel *>(container));
    try {
        run.model->run_impl(inputs, outputs, nullptr, nullptr);
    } catch (const std::exception &error) {
        /* The lines after the first are frames of C++. Python repeats the step, and raises its error. */
        const std::string text = error.what();
        std::cerr << "Error: " << text.substr(0, text.find('\n')) << '\n';
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

/* It takes ownership of a tensor with these. Variables that it declares with the type are of PyTorch's class. */
#define RAIIAtenTensorHandle(...) this->owned(__VA_ARGS__)
#define wrap_with_raii_handle_if_needed(...) this->owned(__VA_ARGS__)
#define steal_from_raw_handles_to_raii_handles(...) this->owned(__VA_ARGS__)
