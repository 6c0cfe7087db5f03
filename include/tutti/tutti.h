#pragma once

// Everything but tutti/link.h, which reads c10d's headers. Needs libtorch: a program on tutti::core
// alone includes what it uses of codec.h, dtype.h, environment.h, error.h, group.h, job.h, share.h.

#if !__has_include(<torch/torch.h>)
#error "tutti/tutti.h needs libtorch: link tutti::tutti, or include tutti/job.h and tutti/group.h"
#endif

#include "tutti/averaging.h"
#include "tutti/clip.h"
#include "tutti/codec.h"
#include "tutti/data_parallel.h"
#include "tutti/distributed_sampler.h"
#include "tutti/dtype.h"
#include "tutti/environment.h"
#include "tutti/error.h"
#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/memory_plan.h"
#include "tutti/metrics.h"
#include "tutti/ops.h"
#include "tutti/optimizer.h"
#include "tutti/parallel_cross_entropy.h"
#include "tutti/parallel_embedding.h"
#include "tutti/parallel_linear.h"
#include "tutti/partial.h"
#include "tutti/pipeline_schedule.h"
#include "tutti/progress.h"
#include "tutti/recompute.h"
#include "tutti/recompute_sequential.h"
#include "tutti/sample_order.h"
#include "tutti/schedule.h"
#include "tutti/shard_index.h"
#include "tutti/shard_loader.h"
#include "tutti/share.h"
#include "tutti/split_module.h"
#include "tutti/split_tensors.h"
#include "tutti/step_report.h"
#include "tutti/sync_batch_norm.h"
#include "tutti/tensors.h"
#include "tutti/torch_optimizer.h"
#include "tutti/traffic.h"
#include "tutti/trainer.h"
