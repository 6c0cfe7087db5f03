#!/bin/sh
# enter.sh [OPTION…] HOST COMMAND…: what an MPI's launcher calls in the place of ssh. TUTTI_BENCH_HOSTS has of each
# host its address and a process that is there: "10.77.0.1=4711 10.77.0.2=4712".
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
for pair in $TUTTI_BENCH_HOSTS; do
  [ "${pair%=*}" != "$host" ] || exec nsenter --target "${pair#*=}" --net --uts -- sh -c "$*"
done
echo "enter.sh: no host $host among $TUTTI_BENCH_HOSTS" >&2
exit 1
