# Tests of torch_tests that train on the test device, too, as patterns of GoogleTest: their models, batches and tensors
# are made there, and hashes of models are the CPU's.
set(on_device Accumulation.* AveragedParallel.* Backwards.* Complex.* DataParallel.* DivergingWorkers.* EndedParallel.*
              FailedSteps.* FirstSteps.* Grid.* KeptGradients.* KeptGraphs.* LateBackwardEnd.* LossWeight.* Models.*
              NegativeBit.* Ops.* ParallelMean.* ParameterNames.* Partial.* Profile.* Ranks/OpsOf.* Recompute.*
              RecomputeInADataParallel.* RecomputeMemory.* RecomputeOutside.* RecomputeSequential.ACut*
              RefusedObjects.* Refusals.* Some/TrainerExact.* SyncBatchNorm.* Tensors.* TrainingFailure.* Turns.OfTwoDataParallels*
              WeightedLosses.* Workers/SyncBatchNormOf.*)
# Those of them that do not, by the reason.
set(not_on_device
    # A Trainer or an AveragedParallel, whose models are on the CPU.
    EndedParallel.WhatFollowsAndWhatWasMovedIsQuiet EndedParallel.InsideOthersCollectivesIsNoticedAtOnce
    LossWeight.OfAShard* LossWeight.AndALossScale* NegativeBit.WhatIsKept* ParameterNames.WhatHoldsForNone*
    RecomputeOutside.AnAuxiliaryLoss* RecomputeOutside.WhatACapturedModuleChangesIsChangedOnceInATrainer
    RefusedObjects.OneOverATrainers* TrainingFailure.ADeadWorkerEndsATrainer* TrainingFailure.*TheTrainersDeadline
    # Sparse tensors, codecs and averaging in a Trainer, which are not offered there.
    DataParallel.GradientsSetByHandThatDoNotFit* FirstSteps.TheSameDataInMicroBatchesAndOfASparseTable*
    Ops.ASparseTensor* Partial.AMeanOfIntegers* ParameterNames.ATiedParameter* Recompute.TensorsThatItHasNoBytesOf*
    Refusals.AValueThatACodecCannotSend* Refusals.WhatIsRefusedNamesTheParameter Tensors.WhatCannotBeMoved*
    Some/TrainerExact.*tables_* Some/TrainerExact.*codec Some/TrainerExact.*topk* Some/TrainerExact.*_local*
    Some/TrainerExact.*diloco* Some/TrainerExact.*block_momentum Some/TrainerExact.*partial Some/TrainerExact.*correction
    # The rules of a Trainer that are torch's optimizers, which are tried out on tensors of the CPU.
    Some/TrainerExact.*_rmsprop_*
    # Split layers, which are on the CPU.
    Grid.*Neighbours* NegativeBit.LabelsAndIndices*
    # Views that share memory, and start_all_reduce(), which take tensors of the CPU.
    NegativeBit.WhatIsWrittenTo*
    # torch::load() of a file that has the device's memory, which libtorch reads for its own kinds of devices.
    Refusals.LoadingIntoAWrappedModel*
    # Autocast of the CPU's, and addresses of its memory.
    Recompute.RunsUnderTheSameAutocast RecomputeMemory.OverlapIsThatOfBytes
    # No workers.
    Accumulation.SplitCutsRows* Partial.*DebugBuild)
