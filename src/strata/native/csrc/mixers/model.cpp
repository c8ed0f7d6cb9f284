// Making a model from its description: what rows store, how much scratch they need. Knows no maths.
#include "model.h"

#include <algorithm>
#include <initializer_list>

#include "../errors.h"
#include "attention.h"
#include "cell_codes.h"

using strata::attention_width;
using strata::shape_of;

namespace {

strata::Stored stored_of(const StrataModel &model, const StrataLayer &layer) {
    strata::Stored stored;
    if (layer.is_attention) {
        stored.projected = attention_width(layer.attention);
    } else {
        stored.projected = layer.delta.in.outputs;
        stored.convolved = shape_of(layer.delta).conv_width();
        stored.gates = 2 * int64_t{layer.delta.value_heads};
    }
    if (layer.ngram.key.count) stored.ngram = model.width();
    return stored;
}

// The widest of something over all layers.
template <class F>
int64_t widest(const StrataModel &model, F &&width_of) {
    int64_t most = 1;
    for (const StrataLayer &layer : model.layers) most = std::max<int64_t>(most, width_of(layer));
    return most;
}

// What parts keep on their stacks is bounded.
int32_t check_sizes(const StrataModelShape &shape) {
    if (shape.rotary_half > strata::kMostHalf)
        return strata::fail(STRATA_INVALID, "%d rotated pairs; at most %d work", shape.rotary_half, strata::kMostHalf);
    for (int index = 0; index < shape.layer_count; ++index) {
        const StrataLayer &layer = shape.layers[index];
        const int taps = std::max(layer.delta.conv_kernel, layer.ngram.conv_kernel);
        if (taps > strata::kMostTaps)
            return strata::fail(STRATA_INVALID, "a convolution of %d taps; at most %d work", taps, strata::kMostTaps);
        if (!layer.is_attention) continue;
        const StrataAttention &part = layer.attention;
        if (part.head_dim > strata::kMostHeadDim)
            return strata::fail(STRATA_INVALID, "heads of %d values; at most %d work", part.head_dim,
                                strata::kMostHeadDim);
        for (const int32_t code : {part.key_code, part.value_code}) {
            if (const int32_t refused = strata::check_cells(code, part.head_dim)) return refused;
        }
    }
    return STRATA_OK;
}

}  // namespace

void StrataModel::make_room(int rows) {
    if (rows <= scratch.rows) return;
    const int64_t count = rows, hidden = shape.hidden, wide = width();
    const int64_t outputs = widest(*this, [](const StrataLayer &layer) {
        return std::max(layer.mixer_residual.down.outputs, layer.mlp_residual.down.outputs);
    });
    const int64_t attended = widest(*this, [](const StrataLayer &layer) {
        return layer.is_attention ? int64_t{layer.attention.query_heads} * layer.attention.head_dim
                                  : shape_of(layer.delta).value_width();
    });
    const int64_t per_token = widest(*this, [](const StrataLayer &layer) { return layer.mlp.per_token; });
    scratch.normed.resize(count * wide);
    scratch.gates.resize(count * wide);
    scratch.low.resize(count * std::max<int64_t>(outputs, shape.final_residual.down.outputs));
    scratch.mixed.resize(count * hidden);
    scratch.output.resize(count * hidden);
    scratch.attended.resize(count * attended);
    scratch.rotation.resize(count * 2 * shape.rotary_half);
    scratch.logits.resize(count * widest(*this, [](const StrataLayer &layer) { return layer.mlp.experts; }));
    scratch.ids.resize(count * per_token);
    scratch.weights.resize(count * per_token);
    scratch.job_rows.resize(count * per_token);
    scratch.job_slots.resize(count * per_token);
    scratch.jobs.reserve(count * per_token);
    scratch.expert_rows.resize(count * per_token * hidden);
    scratch.shared.resize(count * 2 * widest(*this, [](const StrataLayer &layer) { return layer.mlp.width; }));
    scratch.shared_rows.resize(count * hidden);
    scratch.shared_weights.resize(count);
    const bool has_ngrams =
        std::any_of(layers.begin(), layers.end(), [](const StrataLayer &layer) { return layer.ngram.key.count > 0; });
    if (has_ngrams) {
        scratch.values.resize(count * (wide + hidden));
        scratch.embeddings.resize(
            count * widest(*this, [](const StrataLayer &layer) { return layer.ngram.embed_dim; }));
    }
    scratch.rows = rows;
}

int32_t strata_model_create(const StrataModelShape *shape, StrataPool *pool, StrataModel **model) {
    return strata::guarded([&] {
        if (const int32_t refused = check_sizes(*shape)) return refused;
        const std::vector<StrataLayer> layers(shape->layers, shape->layers + shape->layer_count);
        auto made = new StrataModel{*shape, pool, layers, {}, {}, 0, 0, {}, {}};
        for (const StrataLayer &layer : made->layers) {
            made->stored.push_back(stored_of(*made, layer));
            made->stored_before.push_back(made->stored_width);
            made->stored_width += made->stored.back().width();
            made->widest_stored = std::max(made->widest_stored, made->stored.back().width());
        }
        *model = made;
        return int32_t{STRATA_OK};
    });
}

int64_t strata_model_struct_bytes() {
    return sizeof(StrataModelShape) + sizeof(StrataLayer) + sizeof(StrataWindow) + sizeof(StrataTimes);
}

void strata_model_destroy(StrataModel *model) { delete model; }

int64_t strata_window_floats(const StrataModel *model, int32_t rows) { return model->stored_width * rows; }

int64_t strata_read_floats(const StrataModel *model, int32_t rows) { return model->widest_stored * rows; }

void strata_model_times(const StrataModel *model, StrataTimes *times) { *times = model->times; }
