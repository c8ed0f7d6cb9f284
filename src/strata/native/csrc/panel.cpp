// Writes activation rows in the order of the panel kernels. Knows no arithmetic but the start of integer sums.
#include "panel.h"

#include <algorithm>
#include <cstring>

#include "panel_order.h"

namespace strata {
namespace {

int32_t group_rows_of(const PanelForm &form, bool is_packed) { return is_packed ? form.packed_group : form.float_group; }

int64_t group_bytes_of(const PanelForm &form, bool is_packed, int32_t columns) {
    const int64_t row_bytes = is_packed ? int64_t{columns / 32} * Record::kBytes : int64_t{columns} * 4;
    return (row_bytes * group_rows_of(form, is_packed) + 63) / 64 * 64;
}

// Place of a block or column among all of the row.
int64_t place_of(int32_t index, int32_t count, int32_t chunk, int32_t lanes) {
    const int32_t first = index / chunk * chunk;
    return first + place_in_chunk(index - first, std::min(chunk, count - first), lanes);
}

}  // namespace

size_t Panel::bytes(const PanelForm &form, bool is_packed, int32_t columns, int64_t rows) {
    const int64_t group = group_rows_of(form, is_packed);
    return static_cast<size_t>((rows + group - 1) / group * group_bytes_of(form, is_packed, columns));
}

Panel::Panel(const PanelForm &form, bool is_packed, int32_t columns, int64_t rows, void *memory)
    : memory_(static_cast<char *>(memory)), rows_(rows), group_bytes_(group_bytes_of(form, is_packed, columns)),
      columns_(columns), group_(group_rows_of(form, is_packed)), bias_(form.bias), is_packed_(is_packed) {
    if (columns != 0 && rows % group_ != 0)
        std::memset(memory_ + rows / group_ * group_bytes_, 0, static_cast<size_t>(group_bytes_));
}

void Panel::take_group(int64_t group, const Row *rows) {
    for (int64_t i = group * group_; i < std::min(rows_, (group + 1) * group_); ++i) {
        if (!is_packed_) take_row(i, rows[i].x);
        for (int32_t b = 0; is_packed_ && b < columns_ / 32; ++b)
            take_block(i, b, rows[i].q + b * 32, rows[i].d[b], rows[i].sums + b * 2);
    }
}

void Panel::take_block(int64_t i, int32_t block, const int8_t *q, float d, const int32_t *sums) {
    const int64_t at = place_of(block, columns_ / 32, kPanelBlocks, 8);
    char *record = memory_ + i / group_ * group_bytes_ + at * Record::kBytes * group_, *row = record + i % group_ * 4;
    const auto put = [&](int offset, auto value) { std::memcpy(row + offset * group_, &value, sizeof value); };
    for (int word = 0; word < 8; ++word) std::memcpy(row + word * 4 * group_, q + word * 4, 4);
    put(Record::kD, d);
    const int32_t of[3] = {sums[0] + sums[1], sums[0], sums[1]};
    for (int part = 0; part < 3; ++part) {
        put(Record::kStart + part * 4, -bias_ * of[part]);
        put(Record::kTotal + part * 4, static_cast<float>(of[part]));
    }
}

void Panel::take_values(int64_t i, int32_t first, int32_t count, const float *x) {
    float *row = reinterpret_cast<float *>(memory_ + i / group_ * group_bytes_) + i % group_;
    for (int32_t k = 0; k < count; ++k) row[place_of(first + k, columns_, kPanelColumns, 16) * group_] = x[k];
}

void Panel::take_row(int64_t i, const float *x) {
    float *to = reinterpret_cast<float *>(memory_ + i / group_ * group_bytes_) + i % group_;
    for (int32_t first = 0; first < columns_; first += kPanelColumns) {
        const int32_t end = std::min(first + kPanelColumns, columns_);
        for (int32_t lane = first; lane < std::min(first + 16, end); ++lane)
            for (int32_t k = lane; k < end; k += 16, to += group_) *to = x[k];
    }
}

size_t Panels::bytes(const PanelForm &form, Kinds kinds, int32_t columns, int64_t rows) {
    return (kinds.packed ? Panel::bytes(form, true, columns, rows) : 0) +
           (kinds.floats ? Panel::bytes(form, false, columns, rows) : 0);
}

Panels::Panels(const PanelForm &form, Kinds kinds, int32_t columns, int64_t rows, void *memory)
    : packed_(form, true, kinds.packed ? columns : 0, rows, memory),
      floats_(form, false, kinds.floats ? columns : 0, rows,
              static_cast<char *>(memory) + bytes(form, {kinds.packed, false}, columns, rows)),
      rows_(rows), packed_groups_(kinds.packed ? packed_.groups() : 0),
      float_groups_(kinds.floats ? floats_.groups() : 0) {}

}  // namespace strata
