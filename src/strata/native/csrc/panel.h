// Activation rows for the kernels that multiply many of them at once: groups of rows lie interleaved, so that a kernel
// finds one word of every row side by side. Knows no matrix.
#pragma once

#include <cstddef>

#include "matrix.h"

namespace strata {

// The rows that one list of products shares, in memory that the owner gives.
class Panel {
public:
    // What `rows` rows of `columns` need, a multiple of 64.
    static size_t bytes(const PanelForm &form, bool is_packed, int32_t columns, int64_t rows);
    // The memory must be 64 bytes aligned. The rows that fill up the last group are zero from the beginning.
    Panel(const PanelForm &form, bool is_packed, int32_t columns, int64_t rows, void *memory);

    int64_t groups() const { return (rows_ + group_ - 1) / group_; }
    int32_t group_rows() const { return group_; }
    // Takes all rows of a group; reads q, d and sums, or x for float codes. `rows` are the panel's rows.
    void take_group(int64_t group, const Row *rows);
    // Takes one block of row i.
    void take_block(int64_t i, int32_t block, const int8_t *q, float d, const int32_t *sums);
    // Takes columns first .. first + count - 1 of row i.
    void take_values(int64_t i, int32_t first, int32_t count, const float *x);
    // Where the group begins whose first row is i.
    const char *from(int64_t i) const { return memory_ + i / group_ * group_bytes_; }

private:
    void take_row(int64_t i, const float *x);

    char *memory_;
    int64_t rows_, group_bytes_;
    int32_t columns_, group_, bias_;
    bool is_packed_;
};

// The same rows for packed codes and for float codes, as the matrices that they are multiplied with want them.
class Panels {
public:
    struct Kinds {
        bool packed = false, floats = false;
        void add(int32_t code) { (is_packed(code) ? packed : floats) = true; }
    };
    static size_t bytes(const PanelForm &form, Kinds kinds, int32_t columns, int64_t rows);
    Panels(const PanelForm &form, Kinds kinds, int32_t columns, int64_t rows, void *memory);

    // The groups of both kinds are numbered 0 .. groups() - 1; different threads may take different groups.
    int64_t groups() const { return packed_groups_ + float_groups_; }
    // Calls quantize(i) for every row that packed codes need, then takes the group from `rows`.
    template <class Quantize>
    void take_group(int64_t group, const Row *rows, Quantize &&quantize) {
        if (group >= packed_groups_) return floats_.take_group(group - packed_groups_, rows);
        const int64_t first = group * packed_.group_rows(), end = first + packed_.group_rows();
        for (int64_t i = first; i < (end < rows_ ? end : rows_); ++i) quantize(i);
        packed_.take_group(group, rows);
    }
    const Panel &of(int32_t code) const { return is_packed(code) ? packed_ : floats_; }
    Panel &of(int32_t code) { return is_packed(code) ? packed_ : floats_; }

private:
    Panel packed_, floats_;
    int64_t rows_, packed_groups_, float_groups_;
};

}  // namespace strata
