// How an expert comes from its file: the system reads ahead, the packer reads and packs, and both looks at the file, one in
// front and one behind, must show what the model was opened with.
#include "expert_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "errors.h"
#include "file_stamp.h"
#include "matrix.h"
#include "packing/tiles.h"

namespace strata {
namespace {

constexpr int64_t kAtOnceBytes = 16 << 20;
// One call makes the system read no more than its read-ahead window, which is 128 KiB unless somebody changed it.
constexpr int64_t kAheadBytes = 128 << 10;

const StrataMatrix &form_of(const StrataExpertLayout &layout, int part) {
    return part == 0 ? layout.gate : part == 1 ? layout.up : layout.down;
}

int64_t part_bytes(const FileLayer &layer, int part) {
    const StrataMatrix &form = form_of(layer.layout, part);
    return form.rows * packing::find_format(layer.parts[part].type)->row_bytes(form.columns);
}

int64_t place_of(const StrataFilePart &part, int32_t expert) { return part.begin + expert * part.stride; }

// Whether the packer writes the arrays that the blob has.
bool fits(const packing::PackFormat &format, const StrataMatrix &form) {
    const packing::TileSizes sizes = format.tile_sizes(form.columns);
    const int64_t of_tile[] = {sizes.codes, sizes.scales, sizes.super_scales, sizes.mins, sizes.super_mins};
    const ArrayBytes wanted = array_bytes(form);
    for (int array = 0; array < 5; ++array)
        if (of_tile[array] * tiles_of(form) != wanted.of[array]) return false;
    return true;
}

StrataPacking packing_of(const FileLayer &layer, int part, int32_t descriptor, int32_t expert, void *blob) {
    const StrataMatrix &form = form_of(layer.layout, part);
    const int64_t *offsets = layer.layout.offsets[part];
    const auto at = [&](int array) -> void * {
        return offsets[array] < 0 ? nullptr : static_cast<char *>(blob) + offsets[array];
    };
    return {layer.parts[part].type, form.rows, form.columns, 1,
            descriptor, -1, 0, 0,
            place_of(layer.parts[part], expert), 0, 0,
            at(0), at(1), at(2), at(3), at(4)};
}

int32_t unreadable(int32_t expert, const ModelFile &file, const char *why) {
    return fail(STRATA_UNREADABLE, "expert %d in %.80s: %s", expert, file.name.c_str(), why);
}

constexpr char kChanged[] = "the model file changed while it was in use: start again";

}  // namespace

int32_t ExpertFiles::open(const StrataModelFile *files, int32_t file_count, const StrataFileLayer *layers,
                          int32_t layer_count) {
    for (int32_t i = 0; i < file_count; ++i) {
        const StrataModelFile &file = files[i];
        if (!file.name) return fail(STRATA_INVALID, "file %d has no name", i);
        files_.push_back({file.name, file.descriptor, file.opened});
    }
    for (int32_t i = 0; i < layer_count; ++i)
        if (const int32_t code = add(layers[i], i)) return code;
    return STRATA_OK;
}

int32_t ExpertFiles::add(const StrataFileLayer &from, int32_t number) {
    if (!from.layout || !from.factors || from.expert_count < 1 || from.layout->blob_bytes <= 0)
        return fail(STRATA_INVALID, "layer %d has no layout, no factors or no experts", number);
    FileLayer layer = {*from.layout, {from.parts[0], from.parts[1], from.parts[2]}, from.expert_count, {}, {}, 0};
    layer.factors.assign(from.factors, from.factors + int64_t{3} * from.expert_count);
    for (int part = 0; part < 3; ++part) {
        const StrataFilePart &in_file = layer.parts[part];
        const packing::PackFormat *format = packing::find_format(in_file.type);
        const StrataMatrix &form = form_of(layer.layout, part);
        if (!format || form.columns % format->block_weights || !fits(*format, form))
            return fail(STRATA_UNSUPPORTED, "part %d of layer %d is of ggml's type %d, which its blobs do not hold",
                        part, number, in_file.type);
        if (in_file.file < 0 || in_file.file >= static_cast<int32_t>(files_.size()))
            return fail(STRATA_INVALID, "part %d of layer %d lies in file %d", part, number, in_file.file);
        if (std::find(layer.files.begin(), layer.files.end(), in_file.file) == layer.files.end())
            layer.files.push_back(in_file.file);
        layer.expert_bytes += part_bytes(layer, part);
    }
    layers_.push_back(std::move(layer));
    return STRATA_OK;
}

int32_t ExpertFiles::at_once(int32_t layer) const {
    return static_cast<int32_t>(
        std::max<int64_t>(1, kAtOnceBytes / layers_[static_cast<size_t>(layer)].expert_bytes));
}

void ExpertFiles::read_ahead(int32_t layer_number, const int32_t *experts, int32_t count) const {
    const FileLayer &layer = layers_[static_cast<size_t>(layer_number)];
    for (int32_t i = 0; i < count; ++i)
        for (int part = 0; part < 3; ++part) {
            const int descriptor = files_[static_cast<size_t>(layer.parts[part].file)].descriptor;
            const int64_t begin = place_of(layer.parts[part], experts[i]), end = begin + part_bytes(layer, part);
            for (int64_t at = begin; at < end; at += kAheadBytes)
                posix_fadvise(descriptor, at, std::min(kAheadBytes, end - at), POSIX_FADV_WILLNEED);
        }
}

int32_t ExpertFiles::check_unchanged(const FileLayer &layer, int32_t expert) const {
    for (const int32_t number : layer.files) {
        const ModelFile &file = files_[static_cast<size_t>(number)];
        if (const int why = find_change(file.descriptor, file.opened))
            return unreadable(expert, file, why == kFileChanged ? kChanged : std::strerror(why));
    }
    return STRATA_OK;
}

int32_t ExpertFiles::read(StrataPool *pool, int32_t layer_number, const int32_t *experts, void *const *blobs,
                          int32_t count) const {
    const FileLayer &layer = layers_[static_cast<size_t>(layer_number)];
    if (count < 1) return STRATA_OK;
    if (const int32_t code = check_unchanged(layer, experts[0])) return code;
    std::vector<StrataPacking> jobs;
    for (int32_t i = 0; i < count; ++i) {
        for (int part = 0; part < 3; ++part) {
            const ModelFile &file = files_[static_cast<size_t>(layer.parts[part].file)];
            jobs.push_back(packing_of(layer, part, file.descriptor, experts[i], blobs[i]));
        }
        std::memcpy(static_cast<char *>(blobs[i]) + layer.layout.post_scales_offset,
                    &layer.factors[static_cast<size_t>(experts[i]) * 3], 3 * sizeof(float));
    }
    if (const int32_t code = strata_pack(pool, jobs.data(), static_cast<int32_t>(jobs.size()))) return code;
    // What was read from a file that is another one by now may be anything. It comes first: it explains all else.
    if (const int32_t code = check_unchanged(layer, experts[0])) return code;
    for (size_t i = 0; i < jobs.size(); ++i) {
        const int32_t expert = experts[i / 3];
        const ModelFile &file = files_[static_cast<size_t>(layer.parts[i % 3].file)];
        if (jobs[i].read_error == ENODATA) return unreadable(expert, file, kChanged);
        if (jobs[i].read_error) return unreadable(expert, file, std::strerror(jobs[i].read_error));
        if (jobs[i].refused >= 0 || !std::isfinite(layer.factors[static_cast<size_t>(expert) * 3 + i % 3]))
            return unreadable(expert, file, "it holds a scale that is no number, or that its format cannot hold");
    }
    return STRATA_OK;
}

}  // namespace strata
