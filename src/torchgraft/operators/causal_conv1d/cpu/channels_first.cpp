// causal_conv1d on CPU where neighbouring times are neighbours in memory: a lane of a vector is a time, and a
// unit of work is a channel of a group of sequences.

#include "units.h"

namespace torchgraft::causal_conv1d {

CAUSAL_CONV1D_RUN_ALL(run_channels_first, false)

}  // namespace torchgraft::causal_conv1d
