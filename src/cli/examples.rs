//! What stands below the help of a verb: command lines to copy. A test holds each of them against the command line.

pub(super) const PROXY: &str = "\
Examples:
  crossfade proxy --old 10.0.0.1:8000 --new 10.0.0.2:8000 --split 5
  crossfade proxy --old 10.0.0.1:8000 --plan plan.yaml --drain 15m
  crossfade proxy --old 127.0.0.1:8080 --kube --kube-deployment my-graph";

pub(super) const CONTROLLER: &str = "\
Examples:
  crossfade controller
  crossfade controller --namespace inference --dry-run";

pub(super) const CRD: &str = "\
Examples:
  crossfade crd | kubectl apply -f -";

pub(super) const DEMO: &str = "\
Examples:
  crossfade demo
  crossfade demo --seconds 20 --plain";

pub(super) const STATUS: &str = "\
Examples:
  crossfade status
  crossfade status my-update -n inference --watch --interval 5s
  crossfade status my-update -o json
  crossfade status --proxy 127.0.0.1:9464";

pub(super) const JUDGE: &str = "\
Examples:
  crossfade judge my-update
  crossfade judge my-update -n inference --for 5m -o json
  crossfade judge --proxy 10.0.0.5:9464,10.0.0.6:9464 --for 10m --ttft-ratio 1.5";

pub(super) const SET: &str = "\
Examples:
  crossfade set my-update --split 25
  crossfade set my-update --split 100 --yes";

pub(super) const PAUSE: &str = "\
Examples:
  crossfade pause my-update";

pub(super) const RESUME: &str = "\
Examples:
  crossfade resume my-update";

pub(super) const DRAIN_OLD: &str = "\
Examples:
  crossfade drain-old my-update";

pub(super) const COMPLETIONS: &str = "\
Examples:
  crossfade completions bash >/etc/bash_completion.d/crossfade";

pub(super) const MAN: &str = "\
Examples:
  crossfade man
  crossfade man /usr/local/share/man/man1";

pub(super) const DRAIN: &str = "\
Examples:
  crossfade drain
  crossfade drain --admin 127.0.0.1:9464";

pub(super) const LOG_LEVEL: &str = "\
Examples:
  crossfade log-level debug
  crossfade log-level warn,crossfade::discovery=debug --admin 127.0.0.1:9464";
