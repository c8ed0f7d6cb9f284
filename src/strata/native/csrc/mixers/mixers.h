// The C ABI of decode windows: a model described once, then one call for each window and each commit.
// A description is read at strata_model_create and copied; what it points to (weights, tables) must outlive the model.
// Pointers are float32 unless they say otherwise; weight matrices are packed (docs/storage-codes.md).
#pragma once

#include "../strata_native.h"

// Matrices of the same columns whose outputs stand side by side in one row: q, k and v of an attention layer.
struct StrataMatrices {
    int32_t count;    // 0: there is none
    int32_t outputs;  // rows of all parts together
    const StrataMatrix *parts[4];
    const int32_t *order;  // [columns]: column j of the parts belongs to input order[j]; null: as they stand
};

// Reading residual streams: grouped norm, low-rank gates; `down` holds the strengths of the write below the low rank.
struct StrataResidual {
    const float *norm_scale;  // [streams * hidden]
    StrataMatrices down, up;  // [low rank (+ streams), streams * hidden] as published, [streams * hidden, low rank]
    int32_t low_rank;
    int32_t has_inject;
};

struct StrataDeltaNet {
    StrataMatrices in, out;  // in: q, k, v rows, then z, b, a
    const float *conv;       // [conv_kernel, conv width], tap-major
    const float *decay_rate, *decay_bias, *norm_scale;
    int32_t key_heads, value_heads, key_dim, value_dim, conv_kernel;
    int32_t gate_is_sigmoid;
    float eps;
    int32_t reserved;
};

// How the heads of keys or of values are stored (mixers/cell_codes.h); CODE8 and CODE4 have a float16 scale for every
// 64 values of a head beside them, CODE4 holds rotated heads.
enum StrataCellCode : int32_t {
    STRATA_CELL_F32 = 0,
    STRATA_CELL_BF16 = 1,
    STRATA_CELL_CODE8 = 2,
    STRATA_CELL_CODE4 = 3,
};

// `heads` heads of head_dim values as they are stored, codes and scales one after another. Neither may overlap x;
// `scales` may be null where the code has none.
STRATA_API int32_t strata_encode_cells(int32_t code, int64_t heads, int32_t head_dim, const float *x, void *codes,
                                       uint16_t *scales);

struct StrataAttention {
    StrataMatrices qkv, out;
    const float *query_scale, *key_scale;  // [head_dim] or null
    int32_t query_heads, kv_heads, head_dim;
    int32_t has_gate;
    float eps;
    int32_t index_heads;   // 0: plain causal attention, the fields below are not read
    StrataMatrices index;  // query heads' rows, then one key head's
    const float *index_query_scale, *index_key_scale;
    int32_t index_dim, budget, ratio;
    float index_eps;
    int32_t key_code, value_code;  // of the layer's cells: StrataCellCode
};

struct StrataNgram {
    StrataMatrices key, value;  // of the table's rows; count 0: the layer has no n-gram block
    const float *key_scale, *query_scale, *conv_scale;
    const float *conv;   // [conv_kernel, streams * hidden]
    StrataMatrices table;  // [table rows, embed_dim / heads]; count 0: the window brings the rows
    const int64_t *head_sizes, *multipliers;
    int32_t ngram_size, heads_per_ngram, embed_dim, conv_kernel;
    int64_t end_of_text;
};

struct StrataMlp {
    StrataMatrices router;  // count 0: a dense MLP, which is gate_up and down below
    const StrataExpertLayout *layout;
    const void *const *blobs;  // [experts]
    int32_t experts, per_token, normalize;
    int32_t width;                // of the shared expert or the dense MLP; 0: there is none
    StrataMatrices gate_up, down;
    const float *shared_gate;  // [hidden]; null: added ungated
    StrataReadCache *reads;    // of experts whose blob is null, as its layer `file_layer`; null: there are none
    int32_t file_layer, reserved;
};

struct StrataLayer {
    const float *mixer_norm, *mlp_norm;  // of a model without streams
    StrataResidual mixer_residual, mlp_residual;
    StrataNgram ngram;
    int32_t is_attention, reserved;
    StrataDeltaNet delta;
    StrataAttention attention;
    StrataMlp mlp;
};

// How a draft layer's input is made of the model's streams and the next token's embedding; count 0: there is none.
struct StrataJoin {
    StrataMatrices embedding_map, hidden_map;
    const float *embedding_scale, *hidden_scale;
};

struct StrataModelShape {
    int32_t hidden, streams, layer_count, vocabulary;  // streams 1: a plain pre-norm decoder
    int32_t rotary_half, reserved;
    float eps;
    int32_t reserved2;
    const StrataLayer *layers;
    const double *frequencies;  // [rotary_half]
    StrataMatrices embedding;   // [vocabulary, hidden]
    StrataResidual final_residual;
    const float *final_norm;
    StrataMatrices head;
    StrataJoin join;
};

// Bytes of the largest of these structs together: a caller whose own differ was made for another library.
STRATA_API int64_t strata_model_struct_bytes();

typedef struct StrataModel StrataModel;
STRATA_API int32_t strata_model_create(const StrataModelShape *shape, StrataPool *pool, StrataModel **model);
STRATA_API void strata_model_destroy(StrataModel *model);

// One slot's state of one layer; null where the layer has no such part. Cells beyond the slot's position are free for
// a window to write; everything else is only read.
struct StrataLayerState {
    void *keys, *values;                  // [cells, kv_heads, codes of a head]
    uint16_t *key_scales, *value_scales;  // [cells, kv_heads, groups]; null where the code has none
    float *raw, *pooled;                  // [cells, index_dim], [blocks, index_dim]
    const float *conv_tail, *delta;
    const int64_t *history;
    const float *ngram_tail;
};

struct StrataWindow {
    int32_t rows, slots;
    const int32_t *bounds;      // [slots + 1] rows of slot s: bounds[s] .. bounds[s + 1]
    const int64_t *positions;   // [slots] of each slot's first row
    const int64_t *token_ids;   // [rows]; of a draft layer: the tokens after the rows
    const StrataLayerState *states;  // [slots][layers]
    const float *joined_hidden;      // [rows, streams * hidden] of a draft layer, else null
    const float *const *ngram_rows;  // [layers] of [rows, embed_dim] where the table is not in memory, else null
    float *stored;                   // [strata_window_floats]: what a commit needs
    float *const *final_delta;       // [layers] of [slots, value_heads, key_dim, value_dim]; null for attention
    int32_t first_logit_row, reserved;
    float *hidden;      // out: [rows, streams * hidden]
    float *logits;      // out: [rows - first_logit_row, vocabulary]
    int32_t *routed;    // out: [layers, rows, per_token]; null: not wanted
    int32_t *is_finite;  // out: whether all logits are (of no logits: the hidden rows)
};

STRATA_API int64_t strata_window_floats(const StrataModel *model, int32_t rows);

// Computes the rows; each has the bits it has alone, whatever the pool's threads. No committed state changes.
STRATA_API int32_t strata_window(StrataModel *model, const StrataWindow *window);

// Where a commit puts the states that are replaced: [layers]; null where there is none, or nothing to be written.
struct StrataNewState {
    float *conv_tail, *delta;
    int64_t *history;
    float *ngram_tail;
};

// Makes the first `accepted` rows (at least 1) of a window's slot state: cells are written again behind those of `states`
// [layers] (the slot's state as it is now), the delta state is replayed from the stored inputs unless its place is null.
STRATA_API int32_t strata_commit(StrataModel *model, const StrataWindow *window, int32_t slot, int32_t accepted,
                                 const StrataLayerState *states, const StrataNewState *replaced);

// A read: rows of one slot that all become state. Its layers are called one after another, each in its own call, so that
// the caller may stop between them; the last one computes the logits. `stored` holds strata_read_floats(rows) and may be
// overwritten between the calls. New states and final delta states are as for a commit; cells are written behind the
// committed ones. Every row has the bits that a window gives it.
STRATA_API int64_t strata_read_floats(const StrataModel *model, int32_t rows);
STRATA_API int32_t strata_read_layer(StrataModel *model, const StrataWindow *window, int32_t layer,
                                     const StrataNewState *replaced);

// to [count, columns] = the table's rows of these numbers, their values as published.
STRATA_API int32_t strata_table_rows(const StrataMatrices *table, const int64_t *rows, int64_t count, float *to);

// Nanoseconds since creation, by part.
struct StrataTimes {
    uint64_t dense, experts, mixers, head, residuals, commit, windows, rows;
};
STRATA_API void strata_model_times(const StrataModel *model, StrataTimes *times);
