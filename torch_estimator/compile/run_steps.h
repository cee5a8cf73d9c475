/* Takes many training steps with a step that AOTInductor has compiled, without Python in between.

   generated_code.py includes this file after the code of the step, and compiled_step.py calls it with the addresses of
   all inputs of all steps. A run takes ownership of the handles of its inputs, so each step needs new ones. */

#include <cmath>

#include <torch/csrc/inductor/aoti_runtime/interface.h>

/* Layout of an input tensor; _LayoutInC in compiled_step.py. */
struct layout {
    int64_t ndim;
    const int64_t *sizes;
    const int64_t *strides;
    int32_t dtype;
};

/* Limits the handles on the stack to 256 kB. */
enum { MOST_INPUTS = 16384 };

/* Makes a CPU tensor of memory that stays with its owner; returns nonzero on failure. */
static AOTITorchError from_blob(int64_t address, const layout &layout, AtenTensorHandle *made) {
    return aoti_torch_create_tensor_from_blob(reinterpret_cast<void *>(address), layout.ndim, layout.sizes,
                                              layout.strides, 0, layout.dtype, 0, 0, made);
}

/* Takes steps until all are taken, one fails, or a loss is not finite. Returns the number of steps taken, or -1 - i if
   step i failed.

   model:   the compiled step.
   layouts: of all inputs of a step: first those of the state, then those of the step's own inputs.
   state:   addresses of the n_state tensors that all steps share and change in place.
   own:     for each step in turn, the addresses of its n_own own inputs: settings and batch.
   losses:  where to write the loss of each step. */
extern "C" int64_t take_steps(AOTInductorModelContainerHandle model, const layout *layouts, const int64_t *state,
                              int64_t n_state, const int64_t *own, int64_t n_own, int64_t steps, float *losses) {
    AtenTensorHandle kept[MOST_INPUTS], inputs[MOST_INPUTS];
    int64_t n_kept = 0, taken = 0;
    if (n_state + n_own > MOST_INPUTS)
        return -1;
    /* Tensors of the state are made once; each step gets new handles of the same tensors, which is cheaper. */
    while (n_kept < n_state && !from_blob(state[n_kept], layouts[n_kept], &kept[n_kept]))
        n_kept++;
    if (n_kept < n_state)
        taken = -1;
    for (int64_t step = 0; taken >= 0 && step < steps; step++) {
        int64_t made = 0;
        int32_t failed = 0;
        AtenTensorHandle loss;
        void *data;
        for (; made < n_state && !failed; made += !failed)
            failed = aoti_torch_new_tensor_handle(kept[made], &inputs[made]);
        for (; made < n_state + n_own && !failed; made += !failed)
            failed = from_blob(own[step * n_own + made - n_state], layouts[made], &inputs[made]);
        if (failed) {
            /* The run, which would have taken ownership of these handles, does not take place. */
            while (made > 0)
                aoti_torch_delete_tensor_object(inputs[--made]);
        } else {
            failed = AOTInductorModelContainerRun(model, inputs, made, &loss, 1, nullptr, nullptr);
        }
        if (failed) {
            taken = -1 - step;
            break;
        }
        aoti_torch_get_data_ptr(loss, &data);
        losses[step] = *static_cast<float *>(data);
        aoti_torch_delete_tensor_object(loss);
        taken++;
        if (!std::isfinite(losses[step]))
            break;
    }
    while (n_kept > 0)
        aoti_torch_delete_tensor_object(kept[--n_kept]);
    return taken;
}
