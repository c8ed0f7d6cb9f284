// Matrices times rows of activations: quantizes the rows once, cuts the tiles of all matrices into one list of items.
// Knows no code and no instruction set.
#include <algorithm>
#include <cstring>
#include <vector>

#include "activations.h"
#include "errors.h"
#include "matrix.h"
#include "panel_products.h"
#include "pool.h"
#include "shares.h"

namespace strata {
namespace {

// An item is worth claiming from this many bytes of codes on: a claim costs about 0.1 us, 32 KiB take 2 us or more.
constexpr int64_t kItemBytes = 32 << 10;
// Below this many values the caller quantizes alone: faster than handing rows to others.
constexpr int64_t kFewValues = 16 << 10;

// Tiles of one product that are claimed together.
struct Item {
    int32_t product;
    int64_t first, end;
};

std::vector<Item> cut(const StrataProduct *products, int32_t count, int threads) {
    int64_t total = 0;
    for (int32_t p = 0; p < count; ++p) total += array_bytes(*products[p].matrix).of[0];
    // Small products still reach every thread; eight items a thread keep the last one from waiting long.
    const int64_t item_bytes = std::max<int64_t>(kItemBytes, total / (8 * threads) + 1);
    std::vector<Item> items;
    for (int32_t p = 0; p < count; ++p) {
        const StrataMatrix &m = *products[p].matrix;
        const int64_t step = std::max<int64_t>(1, item_bytes / tile_bytes(m));
        for (int64_t first = 0; first < tiles_of(m); first += step)
            items.push_back({p, first, std::min(first + step, tiles_of(m))});
    }
    return items;
}

// out[i][width] into columns of the rows `first` .. of y.
void put_rows(const StrataProduct &product, int64_t tile, int64_t tiles, size_t first, size_t count, const float *out) {
    const int64_t width = std::min<int64_t>(tiles * kTileRows, product.matrix->rows - tile * kTileRows);
    for (size_t i = 0; i < count; ++i) {
        float *y = product.y + static_cast<int64_t>(first + i) * product.y_stride + tile * kTileRows;
        std::copy_n(out + static_cast<int64_t>(i) * tiles * kTileRows, width, y);
    }
}

void run_item(const KernelSet &set, const StrataProduct &product, const Item &item, const TileRun &next,
              const std::vector<Row> &rows) {
    const StrataMatrix &m = *product.matrix;
    alignas(64) float out[kMostRows * kTileRows];
    for (int64_t tile = item.first, end; rows.size() == 1 && tile < item.end; tile = end) {
        end = std::min<int64_t>(tile + kMostRows, item.end);
        run_stream(set, {&m, tile, end}, end < item.end ? TileRun{&m, end, item.end} : next, rows[0], out);
        put_rows(product, tile, end - tile, 0, 1, out);
    }
    for (int64_t tile = item.first; rows.size() > 1 && tile < item.end; ++tile) {
        for (size_t first = 0; first < rows.size(); first += kMostRows) {
            const size_t count = std::min<size_t>(kMostRows, rows.size() - first);
            run_tile(set, m, tile, rows.data() + first, static_cast<int32_t>(count), out);
            put_rows(product, tile, 1, first, count, out);
        }
    }
}

int32_t check(const StrataProduct *products, int32_t product_count, const float *x, int32_t count, int64_t x_stride) {
    if (!products || product_count < 1 || !x || count < 0)
        return fail(STRATA_INVALID, "%d products, %d rows, or a null pointer", product_count, count);
    for (int32_t p = 0; p < product_count; ++p) {
        if (const int32_t code = check_matrix(products[p].matrix)) return code;
        const StrataMatrix &m = *products[p].matrix;
        if (m.columns != products[0].matrix->columns)
            return fail(STRATA_INVALID, "matrices of %d and %d columns cannot share activations",
                        products[0].matrix->columns, m.columns);
        if (!products[p].y || products[p].y_stride < m.rows || x_stride < m.columns)
            return fail(STRATA_INVALID, "y is missing, or rows of x or y overlap");
    }
    return STRATA_OK;
}

}  // namespace
}  // namespace strata

int32_t strata_matrices_rows(StrataPool *pool, const StrataProduct *products, int32_t product_count, const float *x,
                             int32_t count, int64_t x_stride) {
    using namespace strata;
    if (const int32_t code = check(products, product_count, x, count, x_stride)) return code;
    return guarded([&]() -> int32_t {
        const KernelSet &set = kernels();
        bool many = false;
        for (int32_t p = 0; p < product_count; ++p) many |= wants_panels(set, products[p].matrix->code, count);
        if (many) {
            multiply_panels(pool, set, products, product_count, x, count, x_stride);
            return STRATA_OK;
        }
        const int32_t columns = products[0].matrix->columns;
        bool any_packed = false;
        for (int32_t p = 0; p < product_count; ++p) any_packed |= is_packed(products[p].matrix->code);

        PoolGuard guard(pool);
        Activations activations(guard.scratch(Activations::bytes(count, columns)), count, columns);
        std::vector<Row> rows;
        for (int32_t i = 0; i < count; ++i) rows.push_back(activations.row(i, x + i * x_stride));
        const auto take = [&](int64_t i, int) { activations.take(set, i, x + i * x_stride); };
        if (any_packed && int64_t{count} * columns > kFewValues) {
            for_items(pool, count, take);
        } else if (any_packed) {
            for (int32_t i = 0; i < count; ++i) take(i, 0);
        }
        const std::vector<Item> items = cut(products, product_count, thread_count(pool));
        const auto run_of = [&](int64_t i) -> TileRun {
            if (i < 0) return {};
            const Item &item = items[static_cast<size_t>(i)];
            return {products[item.product].matrix, item.first, item.end};
        };
        const int shares = std::min<int>(thread_count(pool), static_cast<int>(items.size()));
        Shares dealt(static_cast<int64_t>(items.size()), shares);
        for_shares(pool, shares, [&](int64_t share, int) {
            dealt.work_off(static_cast<int>(share), [&](const Shares::Run &run) {
                const Item &item = items[static_cast<size_t>(run.first)];
                run_item(set, products[item.product], item, run_of(run.next), rows);
            });
        });
        return STRATA_OK;
    });
}

int32_t strata_matrix_rows(StrataPool *pool, const StrataMatrix *matrix, const float *x, int32_t count,
                           int64_t x_stride, float *y, int64_t y_stride) {
    const StrataProduct product = {matrix, y, y_stride};
    return strata_matrices_rows(pool, &product, 1, x, count, x_stride);
}

int32_t strata_quantize(const float *x, int32_t columns, int8_t *q, float *d) {
    using namespace strata;
    if (!x || !q || !d || columns < 32 || columns % 32 != 0)
        return fail(STRATA_INVALID, "%d columns (a multiple of 32 works), or a null pointer", columns);
    return guarded([&]() -> int32_t {
        const Rounding rounding;
        std::vector<int32_t> sums(static_cast<size_t>(columns / 16));
        kernels().quantize(x, columns, q, d, sums.data());
        return STRATA_OK;
    });
}

int32_t strata_silu_mul(const float *gate, const float *up, float *h, int64_t count) {
    if (!gate || !up || !h || count < 0) return strata::fail(STRATA_INVALID, "a null pointer or a negative count");
    const strata::Rounding rounding;
    strata::kernels().silu_mul(gate, up, h, count);
    return STRATA_OK;
}
