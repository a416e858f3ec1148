//! The examples below the help of a command: command lines to copy. A test parses each of them.

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

pub(super) const PLAN: &str = "\
Examples:
  crossfade plan --from chat.yaml --to chat-edited.yaml >next.yaml
  crossfade plan --from chat.yaml --to chat-edited.yaml | kubectl diff -f -
  git show HEAD:chat.yaml | crossfade plan --from - --to chat.yaml \\
    --client-service chat | kubectl apply -f -";

pub(super) const SIMULATE: &str = "\
Examples:
  crossfade simulate -f rollout.yaml -f workers.yaml --startup 4m --stream-p99 9m --rate 40
  crossfade simulate -f rollout.yaml --replicas prefill=4,decode=2 --gpus 8 \\
    --startup 4m --stream-p99 9m --rate 40 --max-surge 100%
  crossfade simulate -f rollout.yaml --replicas 8 --startup 4m --stream-p99 9m --rate 40 \\
    --continuation on -o svg >rollout.svg";

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

pub(super) const RETRY: &str = "\
Examples:
  crossfade retry my-update
  crossfade retry my-update -n inference --yes";

pub(super) const ROLLOUT: &str = "\
Examples:
  crossfade rollout
  crossfade rollout chat -n inference --watch
  crossfade rollout pause chat
  crossfade rollout undo chat --yes";

pub(super) const ROLLOUT_PAUSE: &str = "\
Examples:
  crossfade rollout pause chat";

pub(super) const ROLLOUT_RESUME: &str = "\
Examples:
  crossfade rollout resume chat";

pub(super) const ROLLOUT_PROMOTE: &str = "\
Examples:
  crossfade rollout promote chat";

pub(super) const ROLLOUT_ABORT: &str = "\
Examples:
  crossfade rollout abort chat -n inference --yes";

pub(super) const ROLLOUT_UNDO: &str = "\
Examples:
  crossfade rollout undo chat
  crossfade rollout undo chat --to 2";

pub(super) const ROLLOUT_RETRY: &str = "\
Examples:
  crossfade rollout retry chat";

pub(super) const ROLLOUT_HISTORY: &str = "\
Examples:
  crossfade rollout history chat -n inference";

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
