// Many activation rows times several matrices: rows become panels once, items are some tiles times one panel.
#include "panel_products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "activations.h"
#include "matrix.h"
#include "panel.h"
#include "pool.h"

namespace strata {
namespace {

constexpr int64_t kPassRows = 480;          // rows that are made panels of at a time: a bound for scratch memory
constexpr int64_t kItemProducts = 4 << 20;  // multiplications of an item: 20 us or more

// Tiles of one product that are claimed together.
struct Item {
    int32_t product;
    int64_t first, end;
};

std::vector<Item> cut(const KernelSet &set, const StrataProduct *products, int32_t count, int64_t rows) {
    std::vector<Item> items;
    for (int32_t p = 0; p < count; ++p) {
        const StrataMatrix &m = *products[p].matrix;
        const int64_t call = set.form.tiles, cost = call * kTileRows * m.columns * std::min<int64_t>(rows, kPanelRows);
        const int64_t step = std::max<int64_t>(1, kItemProducts / cost) * call;
        for (int64_t first = 0; first < tiles_of(m); first += step)
            items.push_back({p, first, std::min(first + step, tiles_of(m))});
    }
    return items;
}

// Rows `first` .. of the panels; y points at the first of them.
void run_item(const KernelSet &set, const StrataProduct &product, const Item &item, const Panel &panel, int64_t first,
              int32_t count) {
    const StrataMatrix &m = *product.matrix;
    const int64_t width = int64_t{set.form.tiles} * kTileRows;
    alignas(64) float out[kPanelRows * kMostPanelTiles * kTileRows];
    for (int64_t tile = item.first; tile < item.end; tile += set.form.tiles) {
        run_panel(set, m, tile, panel.from(first), count, out);
        const auto bytes = static_cast<size_t>(std::min(width, m.rows - tile * kTileRows)) * sizeof(float);
        for (int32_t i = 0; i < count; ++i)
            std::memcpy(product.y + (first + i) * product.y_stride + tile * kTileRows, out + i * width, bytes);
    }
}

void multiply_pass(StrataPool *pool, const KernelSet &set, const std::vector<StrataProduct> &products, const float *x,
                   int64_t count, int64_t x_stride) {
    const int32_t columns = products[0].matrix->columns;
    Panels::Kinds kinds;
    for (const StrataProduct &product : products) kinds.add(product.matrix->code);
    const size_t row_bytes = Activations::bytes(count, kinds.packed ? columns : 1);

    PoolGuard guard(pool);
    auto *memory = static_cast<char *>(guard.scratch(row_bytes + Panels::bytes(set.form, kinds, columns, count)));
    Activations activations(memory, count, kinds.packed ? columns : 1);
    Panels panels(set.form, kinds, columns, count, memory + row_bytes);
    std::vector<Row> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back(activations.row(i, x + i * x_stride));
    for_items(pool, panels.groups(), [&](int64_t group, int) {
        panels.take_group(group, rows.data(), [&](int64_t i) { activations.take(set, i, x + i * x_stride); });
    });
    const std::vector<Item> items = cut(set, products.data(), static_cast<int32_t>(products.size()), count);
    const auto cuts = static_cast<int64_t>(items.size());
    for_items(pool, cuts * ((count + kPanelRows - 1) / kPanelRows), [&](int64_t i, int) {
        const Item &item = items[static_cast<size_t>(i % cuts)];
        const StrataProduct &product = products[static_cast<size_t>(item.product)];
        const int64_t first = i / cuts * kPanelRows;
        run_item(set, product, item, panels.of(product.matrix->code), first,
                 static_cast<int32_t>(std::min<int64_t>(kPanelRows, count - first)));
    });
}

}  // namespace

void run_panel(const KernelSet &set, const StrataMatrix &m, int64_t tile, const char *panel, int32_t count, float *out) {
    (is_packed(m.code) ? set.packed_panel : set.float_panel)(m, tile, panel, count, out);
}

void multiply_panels(StrataPool *pool, const KernelSet &set, const StrataProduct *products, int32_t product_count,
                     const float *x, int64_t count, int64_t x_stride) {
    std::vector<StrataProduct> pass(products, products + product_count);
    for (int64_t first = 0; first < count; first += kPassRows) {
        multiply_pass(pool, set, pass, x + first * x_stride, std::min(kPassRows, count - first), x_stride);
        for (StrataProduct &product : pass) product.y += kPassRows * product.y_stride;
    }
}

}  // namespace strata
