#!/usr/bin/env bash
# Runs a real Kubernetes on this machine while a command runs, and removes it afterwards.
#
#   cluster.sh possible           says why no cluster with pods is possible here, if so (exit status 1)
#   cluster.sh run CMD [ARG...]   one node with pods: etcd, API server, controllers, scheduler, kubelet on containerd and
#                                 runc, kube-proxy, DNS. CMD runs in the network, mount and process namespaces of the node
#   cluster.sh api CMD [ARG...]   only etcd and the API server: no pods, no root, no namespaces, free ports
#
# CMD finds `kubectl` and KUBECONFIG set, and its exit status is the script's. Several clusters may run at once. Within one:
#
#   cluster.sh apiserver pause|resume|stop|start   injects a fault; `start` returns once the API server is ready again;
#                                                  needs only CLUSTER_DIR
#   cluster.sh image ARCHIVE...                    imports images (built by image.py) on the node
#
# Environment: CLUSTER_IMAGES (archives to import at the start, separated by spaces), CLUSTER_KEEP (keep the directory with all logs).
# tests/kubernetes/install.sh builds the programs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/crossfade/kubernetes
programs=$home/programs
node_ip=10.244.0.1
dns_ip=10.96.0.10

possible() {
  local program
  if [ "$(id -u)" != 0 ]; then
    echo "not root"
    return 1
  fi
  for program in containerd ctr runc nft ip unshare /usr/lib/cni/bridge "$programs" "$home/pause.tar"; do
    if ! command -v "$program" >/dev/null && ! [ -e "$program" ]; then
      echo "$program is missing: run tests/kubernetes/install.sh"
      return 1
    fi
  done
  if ! unshare --net --mount --pid --fork true 2>/dev/null; then
    echo "namespaces cannot be made here"
    return 1
  fi
}

# Checks what every cluster needs. Otherwise, the script would wait for a cluster that cannot start.
made() {
  local program
  for program in openssl python3 curl setpriv "$programs"; do
    if ! command -v "$program" >/dev/null; then
      echo "cluster.sh: $program is missing: run tests/kubernetes/install.sh, which says what it needs" >&2
      return 1
    fi
  done
}

certificates() {
  local key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
  sign() { # name, subject, alternative names
    openssl req "${key[@]}" -subj "$2" -keyout "$1.key" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out "$1.crt" \
      -extfile <(printf 'subjectAltName=%s' "$3")
  }
  {
    openssl req -x509 "${key[@]}" -days 2 -subj /CN=ca -keyout ca.key -out ca.crt
    sign apiserver /CN=kube-apiserver \
      "IP:127.0.0.1,IP:10.96.0.1,IP:$node_ip,DNS:kubernetes,DNS:kubernetes.default.svc,DNS:localhost"
    sign kubelet /O=system:masters/CN=kube-apiserver-kubelet-client "IP:$node_ip,DNS:node"
    openssl ecparam -name prime256v1 -genkey -noout -out sa.key
    openssl ec -in sa.key -pubout -out sa.pub
  } 2>openssl.log
  : >tokens.csv
  user() { # file, user, group
    local token
    token=$(openssl rand -hex 16)
    echo "$token,$2,$1,\"$3\"" >>tokens.csv
    cat >"$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$api_port", certificate-authority: $PWD/ca.crt}}]
users: [{name: me, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: me}}]
current-context: test
END
  }
  user admin admin system:masters
  user controllers system:kube-controller-manager ""
  user scheduler system:kube-scheduler ""
  user proxy system:kube-proxy ""
  user node system:node:node system:nodes
}

# The files that the programs of a node read.
settings() {
  mkdir -p cni
  cat >cni/pods.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
 "isGateway": true, "ipMasq": false, "hairpinMode": true,
 "ipam": {"type": "host-local", "dataDir": "$PWD/ipam",
          "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
  # restrict_oom_score_adj: a root without CAP_SYS_RESOURCE may not lower the score, and runc then fails.
  cat >containerd.toml <<END
version = 2
root = "$PWD/containerd-root"
state = "$PWD/containerd-state"
[grpc]
  address = "$PWD/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "test.local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$PWD/cni"
END
  cat >kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PWD/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PWD/kubelet.crt
tlsPrivateKeyFile: $PWD/kubelet.key
containerRuntimeEndpoint: unix://$PWD/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
evictionHard: {memory.available: "50Mi", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
clusterDNS: [$dns_ip]
clusterDomain: cluster.local
resolvConf: /dev/null
podLogsDir: $PWD/pods
syncFrequency: 2s
END
  # masqueradeAll: pods on the one bridge would answer each other directly, past the translation.
  cat >proxy.yaml <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
nftables: {masqueradeAll: true, minSyncPeriod: 200ms}
clientConnection: {kubeconfig: $PWD/proxy.kubeconfig}
clusterCIDR: 10.244.0.0/24
hostnameOverride: node
conntrack: {maxPerCore: 0, min: 0}
END
  cat >Corefile <<END
.:53 {
  bind $node_ip
  errors
  ready $node_ip:8181
  kubernetes cluster.local {
    kubeconfig $PWD/admin.kubeconfig
    ttl 1
  }
}
END
  cat >dns.yaml <<END
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $dns_ip
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: [$node_ip]}]
END
}

until_ok() {
  local end=$((SECONDS + 120))
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ]; then
      echo "cluster.sh: timed out waiting for: $*" >&2
      tail -n 5 ./*.log >&2
      return 1
    fi
    sleep 0.1
  done
}

# With curl, because starting kubectl ten times per second would slow the components that it waits for.
api_ready() {
  curl -fs --cacert ca.crt "https://127.0.0.1:$api_port/readyz"
}

# Starts a Kubernetes program that ends with this script, however the script ends.
program() { # name, arguments; its log is NAME.log, its process NAME.pid
  # It runs for minutes and mostly starts up, a third of which would be garbage collection.
  GOGC=400 setpriv --pdeathsig KILL -- "$programs" "$@" >>"$1.log" 2>&1 &
  echo $! >"$1.pid"
  disown
}

# Through scripts in the cluster's directory, so that it can be restarted in place.
start_apiserver() {
  local advertise=(--advertise-address=$node_ip)
  if [ "$kind" = api ]; then
    # Nobody reaches it as a Service, and loopback addresses are not allowed there.
    advertise=(--endpoint-reconciler-type=none --bind-address=127.0.0.1)
  fi
  program kube-apiserver --etcd-servers="http://127.0.0.1:$etcd_port" --secure-port="$api_port" "${advertise[@]}" \
    --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true --authorization-mode=Node,RBAC \
    --tls-cert-file=apiserver.crt --tls-private-key-file=apiserver.key --client-ca-file=ca.crt \
    --token-auth-file=tokens.csv --service-account-key-file=sa.pub --service-account-signing-key-file=sa.key \
    --service-account-issuer=https://kubernetes.default.svc --api-audiences=https://kubernetes.default.svc \
    --kubelet-client-certificate=kubelet.crt --kubelet-client-key=kubelet.key \
    --kubelet-preferred-address-types=InternalIP --shutdown-delay-duration=0s
}

control_plane() {
  program etcd --data-dir=etcd --unsafe-no-fsync --log-level=error \
    --listen-client-urls="http://127.0.0.1:$etcd_port" --advertise-client-urls="http://127.0.0.1:$etcd_port" \
    --listen-peer-urls="http://127.0.0.1:$peer_port"
  start_apiserver
  mkdir -p bin
  printf '#!/bin/sh\nexec %s kubectl "$@"\n' "$programs" >bin/kubectl
  chmod +x bin/kubectl
  export KUBECONFIG=$PWD/admin.kubeconfig CLUSTER_DIR=$PWD PATH=$PWD/bin:$PATH
  echo "kind=$kind api_port=$api_port etcd_port=$etcd_port KUBECONFIG=$KUBECONFIG PATH=$PWD/bin:\$PATH" >settings
  until_ok api_ready
}

node() {
  ip link set lo up
  ip link add cni0 type bridge
  ip addr add $node_ip/24 dev cni0
  ip link set cni0 up
  # Service addresses are "unreachable" before they are translated if there is no route at all.
  ip route add default via $node_ip
  sysctl -qw net.ipv4.ip_forward=1
  export CONTAINERD_ADDRESS=$PWD/containerd.sock
  containerd -c containerd.toml >containerd.log 2>&1 &
  control_plane
  program kube-controller-manager --kubeconfig=controllers.kubeconfig --service-account-private-key-file=sa.key \
    --root-ca-file=ca.crt --use-service-account-credentials --leader-elect=false
  program kube-scheduler --kubeconfig=scheduler.kubeconfig --authentication-kubeconfig=scheduler.kubeconfig \
    --authorization-kubeconfig=scheduler.kubeconfig --leader-elect=false
  until_ok ctr version
  # shellcheck disable=SC2086 # a list
  images "$home/pause.tar" ${CLUSTER_IMAGES:-}
  program kubelet --config=kubelet.yaml --kubeconfig=node.kubeconfig --root-dir="$PWD/kubelet" \
    --hostname-override=node --node-ip=$node_ip
  program kube-proxy --config=proxy.yaml
  kubectl apply -f dns.yaml >/dev/null
  program coredns -conf Corefile
  until_ok curl -fs http://$node_ip:8181/ready
  until_ok kubectl get serviceaccount default
  kubectl wait --for=condition=Ready node/node --timeout=60s >/dev/null
}

images() {
  local archive
  for archive; do
    ctr -n k8s.io image import "$archive" >>"${CLUSTER_DIR:-.}/images.log"
  done
}

# Below the ephemeral port range, which the kernel uses for connections and for tests that listen on port 0.
free_ports() {
  python3 - <<'END'
import random, socket
sockets = []
while len(sockets) < 3:
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(10000, 32000)))
        sockets.append(s)
    except OSError:
        pass
print(*(s.getsockname()[1] for s in sockets))
END
}

hurt_apiserver() {
  cd "${CLUSTER_DIR:?not inside a cluster}"
  # shellcheck source=/dev/null
  . ./settings
  export KUBECONFIG
  local pid
  pid=$(cat kube-apiserver.pid)
  case $1 in
    pause) kill -STOP "$pid" ;;
    resume) kill -CONT "$pid" ;;
    stop)
      kill -KILL "$pid"
      while kill -0 "$pid" 2>/dev/null && [ "$(ps -o state= -p "$pid")" != Z ]; do sleep 0.05; done
      ;;
    start)
      # The cluster's own script starts it, so that it lives as long as the cluster and not as this one.
      rm -f kube-apiserver.pid
      : >start-apiserver
      until_ok test -s kube-apiserver.pid
      until_ok api_ready
      ;;
    *) usage ;;
  esac
}

# Restarts the API server on request, in the background of the cluster's script.
attend() {
  while sleep 0.1; do
    if [ -e start-apiserver ]; then
      rm start-apiserver
      start_apiserver
    fi
  done
}

# Runs in the cluster's directory, for `run` inside the namespaces.
live() {
  if [ "$kind" = api ]; then control_plane; else node; fi
  attend &
  local status=0
  "$@" || status=$?
  kill %% 2>/dev/null || true # who attends; or else it would start the API server again
  # shellcheck disable=SC2046 # a list
  kill -KILL $(cat ./*.pid) 2>/dev/null || true
  return $status
}

within() { # kind, command
  kind=$1
  shift
  made
  directory=$(mktemp -d "${TMPDIR:-/tmp}/crossfade-cluster.XXXXXX")
  leave() {
    # Mounts were in their own namespace and are gone; cgroups are the machine's.
    find /sys/fs/cgroup -depth -type d -path '*/k8s.io/*' -exec rmdir {} + 2>/dev/null || true
    if [ -n "${CLUSTER_KEEP:-}" ]; then echo "kept: $directory" >&2; else rm -rf "$directory"; fi
  }
  trap leave EXIT
  local status=0 start=$PWD
  cd "$directory"
  ports="6443 2379 2380"
  [ "$kind" = run ] || ports=$(free_ports)
  read -r api_port etcd_port peer_port <<<"$ports"
  certificates
  if [ "$kind" = api ]; then
    (live env -C "$start" "$@") || status=$?
  else
    settings
    unshare --net --mount --pid --fork --mount-proc --kill-child \
      "$here/cluster.sh" inside "$start" "$ports" "$@" || status=$?
  fi
  return $status
}

usage() {
  sed -n '2,/^set /{/^set /!p}' "${BASH_SOURCE[0]}" | cut -c 3-
  exit 2
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
  possible) possible ;;
  run)
    if ! why=$(possible); then
      echo "cluster.sh: no cluster can be had: $why" >&2
      exit 1
    fi
    within run "$@"
    ;;
  api) within api "$@" ;;
  apiserver) hurt_apiserver "$@" ;;
  image) images "$@" ;;
  inside)
    kind=run start=$1
    read -r api_port etcd_port peer_port <<<"$2"
    shift 2
    live env -C "$start" "$@"
    ;;
  *) usage ;;
esac
