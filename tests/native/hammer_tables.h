// The part of the test program whose tables stay in files. Knows only its name.
#pragma once

void hammer_tables(int rounds);
