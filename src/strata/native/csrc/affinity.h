// Which cores this process may use, in the order in which threads should take them.
// Knows no thread; the pool pins.
#pragma once

#include <vector>

namespace strata {

// One thread of every physical core first, then their siblings. Empty where the system does not say.
std::vector<int> usable_cpus();

// The calling thread stays on this CPU; false where the system refuses.
bool pin_this_thread(int cpu);

}  // namespace strata
