/* Matrix products of a compiled step by oneDNN, on processors with AVX-512 that are not made by Intel.

   PyTorch multiplies matrices with MKL, which uses AVX-512 on Intel's processors only. On others oneDNN, which PyTorch
   contains as well, is faster from a few rows on: it halves their time on a Zen 5, and saves a little on a Zen 4. On
   Intel's, products stay with MKL. */

#include <algorithm>
#include <cstdint>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#if defined(__x86_64__)

/* Functions in libtorch_cpu.so, whose headers would take long to compile. If a version lacks one, its address is null. */
namespace at {
[[gnu::weak]] int get_num_threads();
namespace native::cpublas {
/* C = A B, or C += A B, for matrices by rows. Throws if oneDNN is switched off or the processor has no AVX-512. */
[[gnu::weak]] void brgemm(int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t b_row, int64_t c_row, bool add,
                          const float *a, const float *b, float *c, bool is_packed);
} // namespace native::cpublas
} // namespace at
namespace fbgemm {
/* Writes the transpose of a matrix by rows. */
template <typename T>
void transpose_simd(int64_t rows, int64_t columns, const T *from, int64_t from_row, T *to, int64_t to_row);
template <> [[gnu::weak]] void transpose_simd(int64_t, int64_t, const float *, int64_t, float *, int64_t);
} // namespace fbgemm

namespace matrix_product {

/* Blocks of this many rows and columns of B, 256 kB, stay in the cache while many rows of A are multiplied. */
constexpr int64_t BLOCK = 256;

/* So many rows of A are multiplied at once, which limits the memory of a transposed block to 1 MB. */
constexpr int64_t MOST_ROWS = 1024;

/* Rows whose length is a power of two would share a few places in the cache. One cache line more avoids it. */
constexpr int64_t PADDING = 16;

/* In products with fewer rows, transposing the other matrix takes longer than what oneDNN saves. */
constexpr int64_t FEWEST_ROWS = 16;

/* Waking a second thread takes longer than so many multiplications. */
constexpr int64_t WORTH_A_THREAD = 1 << 20;

/* A float32 matrix in the memory of a tensor; if transposed, by columns instead of rows. */
struct Matrix {
    float *data;
    int64_t rows, columns, stride;
    bool is_transposed;

    /* Describes a tensor, as one row if it has one dimension; returns false if it is not such a matrix. */
    bool describe(AtenTensorHandle tensor) {
        int64_t n_dims = 0, *sizes = nullptr, *strides = nullptr;
        int32_t dtype = -1;
        void *memory = nullptr;
        aoti_torch_get_dim(tensor, &n_dims);
        aoti_torch_get_dtype(tensor, &dtype);
        if (n_dims < 1 || n_dims > 2 || dtype != aoti_torch_dtype_float32())
            return false;
        aoti_torch_get_sizes(tensor, &sizes);
        aoti_torch_get_strides(tensor, &strides);
        aoti_torch_get_data_ptr(tensor, &memory);
        if (n_dims == 1) {
            *this = {static_cast<float *>(memory), 1, sizes[0], sizes[0], false};
            return strides[0] == 1;
        }
        is_transposed = strides[1] != 1;
        *this = {static_cast<float *>(memory), sizes[0], sizes[1], strides[is_transposed ? 1 : 0], is_transposed};
        return strides[is_transposed ? 0 : 1] == 1 && stride >= (is_transposed ? rows : columns);
    }

    /* Returns a block of the matrix by rows, in `memory` if it has to be transposed. */
    Matrix block(int64_t row, int64_t column, int64_t n_rows, int64_t n_columns, std::vector<float> &memory) const {
        if (!is_transposed)
            return {data + row * stride + column, n_rows, n_columns, stride, false};
        const int64_t length = n_columns + PADDING;
        memory.resize(n_rows * length);
        fbgemm::transpose_simd(n_columns, n_rows, data + column * stride + row, stride, memory.data(), length);
        return {memory.data(), n_rows, n_columns, length, false};
    }
};

/* Computes `n_rows` rows of C = A B, or of C += A B, from row `m` on. Throws if oneDNN cannot be used. */
inline void multiply_rows(const Matrix &a, const Matrix &b, const Matrix &c, int64_t m, int64_t n_rows, bool add) {
    thread_local std::vector<float> of_a, of_b;
    for (int64_t k = 0; k < a.columns; k += BLOCK) {
        const Matrix left = a.block(m, k, n_rows, std::min(BLOCK, a.columns - k), of_a);
        for (int64_t n = 0; n < b.columns; n += BLOCK) {
            const Matrix right = b.block(k, n, left.columns, std::min(BLOCK, b.columns - n), of_b);
            at::native::cpublas::brgemm(n_rows, right.columns, left.columns, left.stride, right.stride, c.stride,
                                        add || k > 0, left.data, right.data, c.data + m * c.stride + n, false);
        }
    }
}

/* Computes C = A B, or C += A B, on PyTorch's number of threads. Returns false if oneDNN cannot be used. */
inline bool multiply(const Matrix &a, const Matrix &b, const Matrix &c, bool add) {
    const int64_t most_threads = c.rows * c.columns * a.columns / WORTH_A_THREAD;
    const int64_t n_threads = std::clamp<int64_t>(most_threads, 1, at::get_num_threads());
    const int64_t n_rows = std::min(MOST_ROWS, (c.rows + n_threads - 1) / n_threads);
    const auto multiply_from = [&](int64_t m) {
        try {
            multiply_rows(a, b, c, m, std::min(n_rows, c.rows - m), add);
        } catch (...) {
            return false;
        }
        return true;
    };
    if (n_rows == c.rows)
        return multiply_from(0);
    bool is_done = true;
#pragma omp parallel for num_threads(n_threads) reduction(&& : is_done)
    for (int64_t m = 0; m < c.rows; m += n_rows)
        is_done = is_done && multiply_from(m);
    return is_done;
}

/* Computes `out` = `left` `right`, plus `bias` in each row if it is not null. Returns false, and leaves any values in
   `out`, if the tensors or the processor do not suit. */
[[gnu::noinline]] inline bool multiply(AtenTensorHandle out, AtenTensorHandle bias, AtenTensorHandle left,
                                       AtenTensorHandle right) {
    static bool is_available = !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f") &&
                               at::native::cpublas::brgemm != nullptr && at::get_num_threads != nullptr &&
                               fbgemm::transpose_simd<float> != nullptr;
    Matrix a, b, c, row;
    if (!is_available || !a.describe(left) || !b.describe(right) || !c.describe(out) || c.is_transposed)
        return false;
    if (c.rows < FEWEST_ROWS || c.columns < 2 || a.columns < 2)
        return false;
    if (bias != nullptr) {
        if (!row.describe(bias) || row.is_transposed || row.rows != 1 || row.columns != c.columns)
            return false;
        for (int64_t i = 0; i < c.rows; i++)
            std::copy_n(row.data, c.columns, c.data + i * c.stride);
    }
    /* Where oneDNN is switched off, do not try it again. Each failure would cost more than the product. */
    is_available = multiply(a, b, c, bias != nullptr);
    return is_available;
}

} // namespace matrix_product

/* The generated code multiplies matrices with these functions. */
inline AOTITorchError step_mm(AtenTensorHandle out, AtenTensorHandle left, AtenTensorHandle right) {
    return matrix_product::multiply(out, nullptr, left, right) ? AOTI_TORCH_SUCCESS
                                                               : aoti_torch_cpu_mm_out(out, left, right);
}

inline AOTITorchError step_addmm(AtenTensorHandle out, AtenTensorHandle bias, AtenTensorHandle left,
                                 AtenTensorHandle right, double beta, double alpha) {
    return beta == 1 && alpha == 1 && matrix_product::multiply(out, bias, left, right)
               ? AOTI_TORCH_SUCCESS
               : aoti_torch_cpu_addmm_out(out, bias, left, right, beta, alpha);
}

#define aoti_torch_cpu_mm_out step_mm
#define aoti_torch_cpu_addmm_out step_addmm

#endif
