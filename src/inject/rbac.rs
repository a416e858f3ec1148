//! The permissions that the service account of a pod with a sidecar needs, as in deploy/base.

const RBAC: &str = include_str!("../../deploy/base/rbac.yaml");
const OWN: &str = "crossfade-sidecar";

/// The role, and a binding for `account`; without one, for a separate account, which is included. The objects name `namespace`, if
/// there is one.
#[must_use]
pub fn rbac(account: Option<&str>, namespace: Option<&str>) -> String {
    let text = of_account(account);
    let Some(namespace) = namespace else {
        return text;
    };
    // A subject without a namespace is in that of its binding.
    let namespace = serde_json::Value::from(namespace);
    text.replace(
        "\nmetadata:\n",
        &format!("\nmetadata:\n  namespace: {namespace}\n"),
    )
}

fn of_account(account: Option<&str>) -> String {
    let is_comment = |line: &&str| line.starts_with('#');
    let text: Vec<&str> = RBAC.lines().filter(|line| !is_comment(line)).collect();
    let text = text.join("\n") + "\n";
    let Some(account) = account.filter(|account| *account != OWN) else {
        return text;
    };
    let parts = text.split_inclusive("---\n").skip(1);
    parts
        .map(|part| match part.contains("kind: RoleBinding") {
            true => binding(part, account),
            false => part.to_owned(),
        })
        .collect()
}

/// The binding with its own name, and with the account as its subject.
fn binding(part: &str, account: &str) -> String {
    let (head, subjects) = part.split_once("subjects:").unwrap_or((part, ""));
    let account = serde_json::Value::from(account).to_string();
    let name = format!("  name: \"crossfade-{}", &account[1..]);
    let head = head.replacen(&format!("  name: {OWN}"), &name, 1);
    let subjects = subjects.replacen(&format!("  name: {OWN}"), &format!("  name: {account}"), 1);
    format!("{head}subjects:{subjects}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gets_the_role_by_a_binding_of_its_own() {
        let own = rbac(None, None);
        assert!(
            own.contains("kind: ServiceAccount") && own.contains("  name: crossfade-sidecar\n")
        );
        let other = rbac(Some("default"), None);
        assert!(!other.contains("kind: ServiceAccount\nmetadata"), "{other}");
        let (role, binding) = other.split_once("---\n").unwrap();
        assert!(role.starts_with("apiVersion:") && role.contains("kind: Role\n"));
        assert!(
            binding.contains("metadata:\n  name: \"crossfade-default\"\n"),
            "{binding}"
        );
        assert!(
            binding.contains("kind: Role\n  name: crossfade-sidecar\n"),
            "{binding}"
        );
        assert!(
            binding.ends_with("- kind: ServiceAccount\n  name: \"default\"\n"),
            "{binding}"
        );
    }

    #[test]
    fn all_objects_have_the_given_namespace() {
        for (account, objects) in [(None, 3), (Some("default"), 2)] {
            let text = rbac(account, Some("prod"));
            let named = text
                .matches("metadata:\n  namespace: \"prod\"\n  name: ")
                .count();
            assert_eq!(named, objects, "{text}");
            assert_eq!(text.matches("namespace").count(), objects, "{text}");
        }
    }
}
