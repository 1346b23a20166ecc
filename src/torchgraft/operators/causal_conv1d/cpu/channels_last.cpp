// causal_conv1d on CPU where neighbouring channels are neighbours in memory: a lane of a vector is a channel,
// and a unit of work is a tile of channels over a group of stretches of time.

#include "units.h"

namespace torchgraft::causal_conv1d {

CAUSAL_CONV1D_RUN_ALL(run_channels_last, true)

}  // namespace torchgraft::causal_conv1d
