#!/bin/sh
# Where the untrusted node's metrics are comes from the environment, which Prometheus itself does not read.
set -eu
umask 022
printf '[{"targets": ["%s"]}]\n' "${UCN_METRICS_ADDRESS:?set UCN_METRICS_ADDRESS to host:port}" >/tmp/ucn.json
exec prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/prometheus \
  --storage.tsdb.retention.time=30d --web.listen-address=0.0.0.0:9090
