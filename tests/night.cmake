# Tests that only script/night runs, by executable, as patterns of GoogleTest: long ones whose promise a shorter test
# holds as well.
# Levels between the oldest processors and AVX2, which no processor of the last ten years takes.
set(kernels_tests_night */SSSE3 */SSE4)
if(TUTTI_SANITIZE STREQUAL "thread")
  # Ten times as long as without it.
  set(comm_tests_night ManyWorkers.AreNamedAsRanges Crews/LanesOf.*/5on2 Ranks/Exchange.*/3 Ranks/CollectivesOf.*/3)
  set(sync_tests_night ReplicaUpdate.*GivesTheBytesOfTheScalarModel ReplicaUpdate.*GiveTheBytesOfTheScalarModel
                       HostMessages.MessagesTravel* HostSums.AnArrayOfMorePieces* HostSums.LanesDecideNoByte
                       SliceFold.OfMoreNodes* SliceFold.OfSixteenBits* NodeCount.* DenseGradients.WhatIsFolded*
                       CodedGradients.SeveralHosts*)
endif()
