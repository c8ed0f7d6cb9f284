// See table.h.
#include "table.h"

#include "../errors.h"
#include "../weight_values.h"

namespace strata {
namespace {

// (scale * integer - minimum) * post scale, each step rounded: what PackedMatrix.decode gives.
template <class Code>
void packed_values(const StrataMatrix &m, int64_t tile, int row, float *to) {
    const auto *codes = static_cast<const uint8_t *>(m.codes) + tile * (m.columns / 32) * Code::kBlockBytes;
    for (int32_t first = 0; first < m.columns; first += m.sub_block) {
        const float scale = scale_of(m, tile, first / m.sub_block, row);
        const float min = m.min_kind == STRATA_MIN_NONE ? 0.0f : min_of(m, tile, first / m.sub_block, row);
        for (int32_t column = first; column < first + m.sub_block; ++column) {
            const int weight = Code::weight(codes + column / 32 * Code::kBlockBytes, row, column % 32, m.table);
            to[column] = static_cast<float>(weight) * scale - min;
        }
    }
}

}  // namespace

void matrix_row(const StrataMatrix &m, int64_t row, float *to) {
    const int64_t tile = row / kTileRows;
    const int place = static_cast<int>(row % kTileRows);
    const bool is_packed = with_code(m.code, [&](auto code) { packed_values<decltype(code)>(m, tile, place, to); });
    for (int32_t column = 0; !is_packed && column < m.columns; ++column) to[column] = float_weight(m, tile, column, place);
    for (int32_t column = 0; m.post_scale != 1.0f && column < m.columns; ++column) to[column] *= m.post_scale;
}

void table_row(const StrataMatrices &table, int64_t row, float *to) {
    const StrataMatrix *const *part = table.parts;
    for (; row >= (*part)->rows; ++part) row -= (*part)->rows;
    matrix_row(**part, row, to);
}

}  // namespace strata

int32_t strata_table_rows(const StrataMatrices *table, const int64_t *rows, int64_t count, float *to) {
    if (!table || table->count < 1 || !rows || !to) return strata::fail(STRATA_INVALID, "the table or its rows are missing");
    const int64_t columns = table->parts[0]->columns;
    for (int64_t i = 0; i < count; ++i) {
        if (rows[i] < 0 || rows[i] >= table->outputs)
            return strata::fail(STRATA_INVALID, "row %lld of a table of %d", static_cast<long long>(rows[i]), table->outputs);
        strata::table_row(*table, rows[i], to + i * columns);
    }
    return STRATA_OK;
}
