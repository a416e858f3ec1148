//! The charts in a cluster: room for them, and what they leave.

use std::path::Path;

use crate::cluster::Cluster;
use crate::helm::{CONTROLLER, DEFINITION, Helm};
use crate::stage::within_patience;

/// Takes away what other scenarios have left, which has no room beside this or was installed in another way.
pub async fn bare(cluster: &Cluster) {
    let zero = [
        "scale",
        "deployment",
        "--all",
        "--replicas=0",
        "-n",
        "default",
    ];
    cluster.try_kubectl(&zero, "");
    let controller = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/controller");
    let controller = controller.to_string_lossy();
    cluster.kubectl(&["delete", "--ignore-not-found", "-k", &controller]);
    let definition = "crd/dynamoupdateconfigs.nvidia.com";
    cluster.kubectl(&["delete", "--ignore-not-found", definition]);
    within_patience("no pod is left", async || {
        let pods = cluster.get(&["pods", "--all-namespaces"]);
        pods["items"].as_array().expect("a list").is_empty()
    })
    .await;
}

/// Takes away what the charts leave, and the namespace of a scenario.
pub async fn clear(cluster: &Cluster, namespace: &str) {
    let helm = Helm::new(cluster.kubeconfig());
    for release in [CONTROLLER, DEFINITION] {
        helm.run(&["uninstall", release, "--namespace=crossfade", "--wait"]);
    }
    cluster.kubectl(&["delete", "crd/dynamoupdateconfigs.nvidia.com"]);
    // A namespace with pods is looked at again only after half of their grace periods.
    cluster.try_kubectl(&["delete", "dgd", "--all", "-n", namespace], "");
    cluster.kubectl(&["delete", "deployment", "--all", "-n", namespace]);
    within_patience("no pod is left", async || {
        let pods = cluster.get(&["pods", "-n", namespace]);
        pods["items"].as_array().expect("a list").is_empty()
    })
    .await;
    cluster.kubectl(&["delete", "namespace", "crossfade", namespace]);
}
