// Numbered items dealt to threads in contiguous shares: a thread reads long runs of memory, and who has finished his own
// share helps the next thread with what nobody has taken yet. Knows no work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace strata {

class Shares {
public:
    // Items first .. end - 1, taken together; next: what probably comes after them, -1 at a share's end.
    struct Run {
        int64_t first, end, next;
    };

    // step: how many items are taken together as long as a share has more than twice as many; its last ones are taken
    // one by one, for whoever is there first.
    Shares(int64_t items, int shares, int64_t step = 1)
        : items_(items), step_(step), shares_(shares), next_(new Next[static_cast<size_t>(shares)]) {
        for (int share = 0; share < shares; ++share) next_[share].item.store(begin(share), std::memory_order_relaxed);
    }

    // Calls work(run) for items that nobody took, those of `share` first; returns when every item is taken, but others
    // may still be at work.
    template <class Work>
    void work_off(int share, Work &&work) {
        for (int i = 0, from = share; i < shares_; ++i, from = from + 1 < shares_ ? from + 1 : 0) {
            std::atomic<int64_t> &next = next_[from].item;
            const int64_t end = begin(from + 1);
            int64_t first = next.load(std::memory_order_relaxed);
            while (first < end) {
                const int64_t behind = first + (end - first > 2 * step_ ? step_ : 1);
                if (!next.compare_exchange_weak(first, behind, std::memory_order_relaxed)) continue;
                work(Run{first, behind, behind < end ? behind : -1});
                first = next.load(std::memory_order_relaxed);
            }
        }
    }

    int64_t begin(int share) const { return items_ * share / shares_; }

private:
    struct alignas(64) Next {
        std::atomic<int64_t> item;
    };
    int64_t items_, step_;
    int shares_;
    std::unique_ptr<Next[]> next_;
};

}  // namespace strata
