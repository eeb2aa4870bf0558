#!/bin/sh
# Where the untrusted node's metrics are comes from the environment, which Prometheus itself does not read.
set -eu
umask 022
address=${UCN_METRICS_ADDRESS:-}
if ! expr "$address" : '[][A-Za-z0-9._:-]*:[0-9][0-9]*$' >/dev/null; then
  echo "prometheus: error: UCN_METRICS_ADDRESS is '$address'. Set it to host:port of the untrusted node's metrics" >&2
  exit 2
fi
printf '[{"targets": ["%s"]}]\n' "$address" >/tmp/ucn.json
if ! touch /data/.writable 2>/dev/null; then
  echo "prometheus: error: PROMETHEUS_DATA cannot be written. Free space there, or give the folder to user $(id -u)" >&2
  exit 5
fi
exec prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/data \
  --storage.tsdb.retention.time=30d --web.listen-address=0.0.0.0:9090
