#pragma once

// Everything.

#include "tutti/codec.h"
#include "tutti/data_parallel.h"
#include "tutti/dtype.h"
#include "tutti/environment.h"
#include "tutti/error.h"
#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/metrics.h"
#include "tutti/optimizer.h"
#include "tutti/progress.h"
#include "tutti/schedule.h"
#include "tutti/shard_loader.h"
#include "tutti/share.h"
#include "tutti/step_report.h"
#include "tutti/strategy.h"
#include "tutti/tensors.h"
#include "tutti/torch_optimizer.h"
#include "tutti/traffic.h"
#include "tutti/trainer.h"
