// See hammer_cells.cpp.
#pragma once

// Cells of every code are written and attended to; the bits are those of one value at a time.
void hammer_cells(int rounds);
