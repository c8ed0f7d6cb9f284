// What a packed matrix may be, by docs/storage-codes.md. Knows no arithmetic.
#include "matrix.h"

#include "errors.h"

namespace strata {
namespace {

constexpr int32_t kMostColumns = 1 << 24;  // a row's exact integer sums, sizes and offsets stay far from overflow

int32_t check_packed_form(const StrataMatrix &m) {
    if (m.columns % 32 != 0) return fail(STRATA_INVALID, "%d columns: packed codes need a multiple of 32", m.columns);
    if (m.sub_block != 16 && m.sub_block != 32 && m.sub_block != 64)
        return fail(STRATA_INVALID, "sub-block of %d columns; 16, 32 and 64 work", m.sub_block);
    if (m.columns % m.sub_block != 0)
        return fail(STRATA_INVALID, "%d columns are no multiple of the sub-block %d", m.columns, m.sub_block);
    if (m.scale_kind < STRATA_SCALE_F16 || m.scale_kind > STRATA_SCALE_F32)
        return fail(STRATA_INVALID, "no scale kind has number %d", m.scale_kind);
    if (m.min_kind < STRATA_MIN_NONE || m.min_kind > STRATA_MIN_SUPER)
        return fail(STRATA_INVALID, "no min kind has number %d", m.min_kind);
    const bool has_super = m.scale_kind == STRATA_SCALE_SUPER || m.min_kind == STRATA_MIN_SUPER;
    if (has_super && m.columns % 256 != 0)
        return fail(STRATA_INVALID, "%d columns: super scales need a multiple of 256", m.columns);
    return STRATA_OK;
}

int32_t check_float_form(const StrataMatrix &m) {
    if (m.min_kind != STRATA_MIN_NONE) return fail(STRATA_INVALID, "float codes have no mins");
    if (m.code != STRATA_FP8) return STRATA_OK;
    if (m.scale_kind != STRATA_SCALE_F32) return fail(STRATA_INVALID, "fp8 has float32 scales (scale kind 4)");
    if (m.sub_block < 1) return fail(STRATA_INVALID, "an fp8 block of %d columns", m.sub_block);
    return STRATA_OK;
}

}  // namespace

int32_t check_form(const StrataMatrix &m) {
    if (m.rows < 1 || m.columns < 1 || m.columns > kMostColumns)
        return fail(STRATA_INVALID, "a matrix of %d rows and %d columns", m.rows, m.columns);
    if (is_packed(m.code)) return check_packed_form(m);
    if (m.code >= STRATA_F32 && m.code <= STRATA_FP8) return check_float_form(m);
    return fail(STRATA_INVALID, "no storage code has number %d", m.code);
}

ArrayBytes array_bytes(const StrataMatrix &m) {
    static constexpr int64_t kScaleBytes[] = {2, 1, 1, 1, 4};
    const int64_t tiles = tiles_of(m), values = tiles * kTileRows * m.columns;
    if (!is_packed(m.code)) {
        const int64_t element = m.code == STRATA_F32 ? 4 : (m.code == STRATA_FP8 ? 1 : 2);
        const int64_t scales = m.code == STRATA_FP8 ? tiles * kTileRows * sub_blocks_of(m) * 4 : 0;
        return {{values * element, scales, 0, 0, 0}};
    }
    const int64_t subs = values / m.sub_block, supers = values / 256;
    return {{
        values / 8 * m.code,
        subs * kScaleBytes[m.scale_kind],
        m.scale_kind == STRATA_SCALE_SUPER ? supers * 2 : 0,
        m.min_kind == STRATA_MIN_NONE ? 0 : (m.min_kind == STRATA_MIN_F16 ? subs * 2 : subs),
        m.min_kind == STRATA_MIN_SUPER ? supers * 2 : 0,
    }};
}

int32_t check_matrix(const StrataMatrix *m) {
    if (!m) return fail(STRATA_INVALID, "a matrix is missing");
    if (const int32_t code = check_form(*m)) return code;
    static constexpr const char *kNames[] = {"codes", "scales", "super scales", "mins", "super mins"};
    const void *const arrays[] = {m->codes, m->scales, m->super_scales, m->mins, m->super_mins};
    const ArrayBytes bytes = array_bytes(*m);
    for (int i = 0; i < 5; ++i) {
        if (bytes.of[i] == 0) continue;
        if (!arrays[i]) return fail(STRATA_INVALID, "the matrix's %s are missing", kNames[i]);
        if (reinterpret_cast<uintptr_t>(arrays[i]) % 64 != 0)
            return fail(STRATA_INVALID, "the matrix's %s do not begin at a multiple of 64 bytes", kNames[i]);
    }
    return STRATA_OK;
}

}  // namespace strata

int32_t strata_matrix_check(const StrataMatrix *matrix) { return strata::check_matrix(matrix); }
