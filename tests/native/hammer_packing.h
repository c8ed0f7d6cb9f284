// The packer's part of the test program. Knows only its name.
#pragma once

void hammer_packing(int rounds);
