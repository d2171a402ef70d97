// Ranks train one model: what they were told, and what they read, must be the same. A configuration
// that is old on one machine, or a token file made there of another text, would otherwise end in
// collectives that do not match, or in a model that nobody asked for.
#pragma once

#include <c10/core/DeviceType.h>

#include "flashstep/group.h"
#include "flashstep/train/config.h"
#include "flashstep/train/prepare_data.h"

namespace flashstep {

// Every field of the config but where files lie and how many threads there are; the device is the
// kind that is used. UserError, on all ranks, that names the first field and the rank.
void check_same_config(const Config& config, c10::DeviceType device, const Group& group);

// The tokenizer and the token files, by their fingerprints.
void check_same_data(const PreparedData& data, const Group& group);

}  // namespace flashstep
