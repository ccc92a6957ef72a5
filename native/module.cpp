// SPDX-License-Identifier: Apache-2.0
// The Python module tael.kernels._native: checks of sizes, release of the GIL, errors. No kernel lives here.
// Buffers are taken by the buffer protocol as plain bytes: numpy arrays, memoryviews, bytes, mmaps.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"
#include "gather.h"
#include "kernels/polynomial.h"
#include "quants/scales.h"
#include "range_io.h"

namespace nb = nanobind;
using namespace tael;

namespace {

class Buffer {
public:
    Buffer(nb::handle object, int flags) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void* data() const { return view_.buf; }
    size_t size() const { return size_t(view_.len); }
    const Py_buffer& view() const { return view_; }

private:
    Py_buffer view_;
};

struct Input : Buffer {
    explicit Input(nb::handle object) : Buffer(object, PyBUF_SIMPLE) {}
};
struct Output : Buffer {
    explicit Output(nb::handle object) : Buffer(object, PyBUF_WRITABLE) {}
};

// Number of items when both buffers hold the same number of them, apart in memory.
size_t matching(const Buffer& source, size_t source_size, const Buffer& out, size_t out_size) {
    const size_t n = source.size() / source_size;
    if (n * source_size != source.size() || out.size() != n * out_size) {
        char text[160];
        snprintf(text, sizeof text, "%zu bytes of %zu-byte items do not fit %zu bytes of %zu-byte items", source.size(),
                 source_size, out.size(), out_size);
        throw nb::value_error(text);
    }
    const auto* a = static_cast<const char*>(source.data());
    const auto* b = static_cast<const char*>(out.data());
    if (n != 0 && a < b + out.size() && b < a + source.size()) throw nb::value_error("source and out overlap");
    return n;
}

template <Crc Kernels::*crc>
uint32_t checksum(nb::handle data, uint32_t init) {
    const Input input(data);
    nb::gil_scoped_release release;
    return (kernels().*crc)(init, input.data(), input.size());
}

template <Narrow Kernels::*cast, size_t source_size, size_t out_size>
uint64_t narrow(nb::handle source, nb::handle out, bool saturate) {
    const Input input(source);
    const Output output(out);
    const size_t n = matching(input, source_size, output, out_size);
    nb::gil_scoped_release release;
    const FloatEnvironment environment;
    return (kernels().*cast)(input.data(), output.data(), n, saturate);
}

template <Widen Kernels::*cast, size_t source_size, size_t out_size>
uint64_t widen(nb::handle source, nb::handle out, bool) {
    const Input input(source);
    const Output output(out);
    const size_t n = matching(input, source_size, output, out_size);
    nb::gil_scoped_release release;
    const FloatEnvironment environment;
    (kernels().*cast)(input.data(), output.data(), n);
    return 0;
}

const BlockKernel& block_type(const std::string& name) {
    const BlockKernel* kernel = block_kernel(name);
    if (!kernel) throw nb::value_error(("no block type named " + name).c_str());
    return *kernel;
}

const float* floats(const Buffer& buffer) {
    if (reinterpret_cast<uintptr_t>(buffer.data()) % alignof(float) != 0)
        throw nb::value_error("float32 buffers must be aligned to 4 bytes");
    return static_cast<const float*>(buffer.data());
}

// Rows of finite floats into blocks. Weights that leave a scale without a finite value (all of a row's being zero can)
// count as none for that row. Returns -1, or the first block whose scale no float16 holds.
int64_t quantize_rows(const BlockKernel& kernel, const float* from, uint8_t* to, size_t rows, size_t length,
                      const float* weights) {
    kernel.quantize(from, to, rows, length, weights);
    const size_t row_blocks = length / kernel.block;
    const int64_t bad = first_bad_scale(kernel.name, to, rows * row_blocks, kernel.bytes);
    if (bad < 0 || !weights) return bad;
    std::vector<float> equal(kernel.needs_weights ? length : 0, 1.0f);
    for (size_t row = size_t(bad) / row_blocks; row < rows; ++row) {
        uint8_t* blocks = to + row * row_blocks * kernel.bytes;
        if (first_bad_scale(kernel.name, blocks, row_blocks, kernel.bytes) < 0) continue;
        kernel.quantize(from + row * length, blocks, 1, length, kernel.needs_weights ? equal.data() : nullptr);
        const int64_t still = first_bad_scale(kernel.name, blocks, row_blocks, kernel.bytes);
        if (still >= 0) return int64_t(row * row_blocks) + still;
    }
    return -1;
}

int64_t quantize(const std::string& name, nb::handle source, nb::handle out, size_t row_length, nb::handle weights) {
    const Input input(source);
    const Output output(out);
    const BlockKernel& kernel = block_type(name);
    matching(input, 4 * size_t(kernel.block), output, kernel.bytes);
    if (row_length == 0 || row_length % kernel.block != 0 || input.size() % (4 * row_length) != 0)
        throw nb::value_error("row_length must be whole blocks, and the source whole rows");
    const float* from = floats(input);
    std::optional<Input> importance;
    if (!weights.is_none()) {
        importance.emplace(weights);
        if (importance->size() != 4 * row_length)
            throw nb::value_error("weights must be float32, one per element of a row");
    }
    const float* weight = importance ? floats(*importance) : nullptr;
    if (!weight && kernel.needs_weights) throw nb::value_error((name + " needs weights").c_str());
    for (size_t i = 0; weight && i < row_length; ++i)
        if (!(weight[i] >= 0.0f && weight[i] <= __FLT_MAX__))
            throw nb::value_error("weights must be finite and not negative");
    nb::gil_scoped_release release;
    const FloatEnvironment environment;
    const size_t rows = input.size() / (4 * row_length), row_bytes = row_length / kernel.block * kernel.bytes;
    const size_t step = std::max<size_t>(1, 32768 / row_length);  // rows that stay in the cache between check and kernel
    auto* to = static_cast<uint8_t*>(output.data());
    for (size_t row = 0; row < rows; row += step) {
        const size_t count = std::min(step, rows - row);
        const int64_t bad = kernels().first_nonfinite(from + row * row_length, count * row_length);
        if (bad >= 0) return int64_t(row * row_length) + bad;
        const int64_t block = quantize_rows(kernel, from + row * row_length, to + row * row_bytes, count, row_length, weight);
        if (block >= 0) return -2 - (int64_t(row * row_length / kernel.block) + block);
    }
    return -1;
}

void dequantize(const std::string& name, nb::handle source, nb::handle out) {
    const Input input(source);
    const Output output(out);
    const BlockKernel& kernel = block_type(name);
    const size_t n = matching(input, kernel.bytes, output, 4 * size_t(kernel.block));
    auto* to = const_cast<float*>(floats(output));
    nb::gil_scoped_release release;
    const FloatEnvironment environment;
    kernel.dequantize(static_cast<const uint8_t*>(input.data()), to, n);
}

nb::tuple errors_f32(nb::handle a, nb::handle b) {
    const Input left(a), right(b);
    if (left.size() != right.size() || left.size() % 4 != 0) throw nb::value_error("the buffers are not as many float32");
    Errors e;
    {
        nb::gil_scoped_release release;
        const FloatEnvironment environment;
        e = kernels().errors_f32(left.data(), right.data(), left.size() / 4);
    }
    return nb::make_tuple(e.squared_error, e.squares_a, e.squares_b, e.products, e.max_error);
}

// Where `count` strings end, each behind its length of `width` bytes; -1 when they run past the end.
int64_t skip_strings(nb::handle data, size_t start, uint64_t count, size_t width) {
    const Input input(data);
    if (width != 4 && width != 8) throw nb::value_error("a length has 4 or 8 bytes");
    const auto* bytes = static_cast<const uint8_t*>(input.data());
    const size_t size = input.size();
    nb::gil_scoped_release release;
    size_t at = start;
    for (uint64_t i = 0; i < count; ++i) {
        if (at > size || size - at < width) return -1;
        uint64_t length = 0;
        memcpy(&length, bytes + at, width);  // little-endian, as the machine is
        at += width;
        if (length > size - at) return -1;
        at += size_t(length);
    }
    return at <= size ? int64_t(at) : -1;
}

nb::tuple stats_f32(nb::handle source) {
    const Input input(source);
    if (input.size() % 4 != 0) throw nb::value_error("the buffer is not a whole number of float32");
    Stats s;
    {
        nb::gil_scoped_release release;
        const FloatEnvironment environment;
        s = kernels().stats_f32(input.data(), input.size() / 4);
    }
    return nb::make_tuple(s.count, s.nan, s.inf, s.zero, s.min, s.max, s.sum, s.sum_squares);
}

void same_size(const Input& a, const Input& b) {
    if (a.size() != b.size()) throw nb::value_error("the buffers differ in size");
}

int64_t first_difference(nb::handle a, nb::handle b) {
    const Input left(a), right(b);
    same_size(left, right);
    nb::gil_scoped_release release;
    return kernels().first_difference(left.data(), right.data(), left.size());
}

uint64_t count_differences(nb::handle a, nb::handle b, size_t itemsize) {
    const Input left(a), right(b);
    same_size(left, right);
    if (itemsize == 0 || left.size() % itemsize != 0) throw nb::value_error("the buffers are not whole items");
    nb::gil_scoped_release release;
    return kernels().count_differences(left.data(), right.data(), left.size() / itemsize, itemsize);
}

void gather(nb::handle source, nb::handle out) {
    const Buffer input(source, PyBUF_STRIDED_RO);
    const Output output(out);
    const Py_buffer& view = input.view();
    const size_t itemsize = size_t(view.itemsize);
    if (itemsize != 1 && itemsize != 2 && itemsize != 4 && itemsize != 8 && itemsize != 16)
        throw nb::value_error("items must have 1, 2, 4, 8 or 16 bytes");
    if (view.ndim > kMaxDimensions) throw nb::value_error("too many dimensions");
    if (input.size() != output.size()) throw nb::value_error("source and out differ in size");
    int64_t shape[kMaxDimensions], strides[kMaxDimensions];
    for (int d = 0; d < view.ndim; ++d) shape[d] = view.shape[d], strides[d] = view.strides[d];
    nb::gil_scoped_release release;
    gather_strided(view.buf, output.data(), view.ndim, shape, strides, itemsize);
}

uint32_t finish(const RangeResult& result, uint64_t offset, uint64_t n) {
    if (result.error != 0) {
        errno = result.error;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    if (result.ended) {
        PyErr_Format(PyExc_EOFError, "the file ends at byte %llu; %llu bytes were wanted from byte %llu",
                     (unsigned long long)(offset + result.done), (unsigned long long)n, (unsigned long long)offset);
        throw nb::python_error();
    }
    return result.crc;
}

uint32_t copy(int in_fd, uint64_t in_offset, int out_fd, uint64_t out_offset, uint64_t n, bool want_crc) {
    RangeResult result;
    {
        nb::gil_scoped_release release;
        result = copy_range(in_fd, in_offset, out_fd, out_offset, n, want_crc);
    }
    return finish(result, in_offset, n);
}

uint32_t checksum_range(int fd, uint64_t offset, uint64_t n) {
    RangeResult result;
    {
        nb::gil_scoped_release release;
        result = crc32_range(fd, offset, n);
    }
    return finish(result, offset, n);
}

}  // namespace

NB_MODULE(_native, m) {
    using namespace nb::literals;
    m.def("select_level", &select_level, "name"_a);
    m.def("runnable_levels", &runnable_levels);

    m.def("crc32", &checksum<&Kernels::crc32>, "data"_a, "init"_a = 0u);
    m.def("crc32c", &checksum<&Kernels::crc32c>, "data"_a, "init"_a = 0u);
    m.def("crc32_combine", &combine<kZlib>, "crc_a"_a, "crc_b"_a, "n_bytes_b"_a);
    m.def("crc32c_combine", &combine<kCastagnoli>, "crc_a"_a, "crc_b"_a, "n_bytes_b"_a);
    m.def("crc32_range", &checksum_range, "fd"_a, "offset"_a, "n"_a);
    m.def("copy_range", &copy, "in_fd"_a, "in_offset"_a, "out_fd"_a, "out_offset"_a, "n"_a, "want_crc"_a = false);

    m.def("first_difference", &first_difference, "a"_a, "b"_a);
    m.def("count_differences", &count_differences, "a"_a, "b"_a, "itemsize"_a);
    m.def("gather_strided", &gather, "source"_a, "out"_a);
    m.def("stats_f32", &stats_f32, "source"_a);

    const auto cast = [&m](const char* name, auto function) {
        m.def(name, function, "source"_a, "out"_a, "saturate"_a = false);
    };
    cast("f32_to_bf16", &narrow<&Kernels::f32_to_bf16, 4, 2>);
    cast("f32_to_f16", &narrow<&Kernels::f32_to_f16, 4, 2>);
    cast("f32_to_f8_e4m3", &narrow<&Kernels::f32_to_f8_e4m3, 4, 1>);
    cast("f32_to_f8_e5m2", &narrow<&Kernels::f32_to_f8_e5m2, 4, 1>);
    cast("f64_to_f32", &narrow<&Kernels::f64_to_f32, 8, 4>);
    cast("f64_to_f32_odd", &widen<&Kernels::f64_to_f32_odd, 8, 4>);
    cast("bf16_to_f32", &widen<&Kernels::bf16_to_f32, 2, 4>);
    cast("f16_to_f32", &widen<&Kernels::f16_to_f32, 2, 4>);
    cast("f8_e4m3_to_f32", &widen<&Kernels::f8_e4m3_to_f32, 1, 4>);
    cast("f8_e5m2_to_f32", &widen<&Kernels::f8_e5m2_to_f32, 1, 4>);

    m.def("quantize", &quantize, "type"_a, "source"_a, "out"_a, "row_length"_a, "weights"_a.none() = nb::none());
    m.def("dequantize", &dequantize, "type"_a, "source"_a, "out"_a);
    m.def("errors_f32", &errors_f32, "a"_a, "b"_a);
    m.def("skip_strings", &skip_strings, "data"_a, "start"_a, "count"_a, "width"_a);
}
