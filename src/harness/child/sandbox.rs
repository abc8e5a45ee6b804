//! What landlock lets an agent do with files, signals and other processes.
//!
//! - It writes in its workspace, in its state directory and in `/dev`, disks aside, and nowhere else.
//! - It reads and executes everything but what is private to the service: the data directory, in which other sessions have theirs,
//!   the database, the configuration. Landlock can only allow, so everything beside the way to what is private is allowed; the
//!   directories on that way can be passed through but not listed.
//! - Processes outside are closed to it: it can neither signal them nor look into their environment, memory or files, though all
//!   run under one user.
//!
//! It cannot be left, by what the agent starts neither, and takes `sudo` and the like their power. An agent that is root loses
//! the powers that would lead around it, and the raw disks.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capability_is_in_bounding_set, remove_capability_from_bounding_set};

/// The newest version of landlock whose restrictions are meant here. An older kernel enforces what it has of them.
const NEWEST: ABI = ABI::V6;

/// Powers of root that reach processes, files and memory by ways that landlock does not watch.
const AROUND: [CapabilitySet; 9] = [
    CapabilitySet::DAC_READ_SEARCH,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::MKNOD,
    CapabilitySet::PERFMON,
    CapabilitySet::BPF,
];

/// Confines that are drawn and not entered yet.
pub(super) struct Sandbox(RulesetCreated);

impl Sandbox {
    /// Draws them. What is writable is so although it lies in something private.
    ///
    /// # Errors
    /// When something writable is not there, or the kernel refuses.
    pub(super) fn new(writable: &[PathBuf], private: &[PathBuf]) -> io::Result<Self> {
        let ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
            .and_then(Ruleset::create);
        let mut sandbox = Self(ruleset.map_err(io::Error::other)?);
        let devices = devices()?;
        let private: Vec<PathBuf> = private.iter().chain(&devices.disks).cloned().collect();
        for path in readable(&private)? {
            // What has gone since it was listed needs no permission.
            match PathFd::new(&path) {
                Ok(file) => sandbox.allow(file, AccessFs::from_read(NEWEST))?,
                Err(_) => continue,
            }
        }
        for path in writable {
            let file = PathFd::new(path).map_err(io::Error::other)?;
            sandbox.allow(file, AccessFs::from_all(NEWEST))?;
        }
        for path in devices.others {
            if let Ok(file) = PathFd::new(&path) {
                sandbox.allow(file, AccessFs::from_all(NEWEST))?;
            }
        }
        Ok(sandbox)
    }

    fn allow(&mut self, file: PathFd, access: BitFlags<AccessFs>) -> io::Result<()> {
        (&mut self.0).add_rule(PathBeneath::new(file, access)).map_err(io::Error::other)?;
        Ok(())
    }

    /// Enters them, for good, with all that is started from here on.
    pub(super) fn enter(self) -> io::Result<()> {
        if geteuid().is_root() {
            for capability in AROUND {
                // Nobody has one that this kernel does not know.
                if capability_is_in_bounding_set(capability).unwrap_or(false) {
                    remove_capability_from_bounding_set(capability)?;
                }
            }
        }
        self.0.restrict_self().map_err(io::Error::other)?;
        Ok(())
    }
}

/// How much of this the kernel has: 0 for nothing, else the version of landlock, as far as it matters here.
pub(in crate::harness) fn level() -> u32 {
    static LEVEL: OnceLock<u32> = OnceLock::new();
    let has = |abi: &ABI| -> Result<RulesetCreated, RulesetError> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let ruleset = ruleset.handle_access(AccessFs::from_all(*abi))?;
        let scope = Scope::from_all(*abi);
        if scope.is_empty() { ruleset.create() } else { ruleset.scope(scope)?.create() }
    };
    *LEVEL.get_or_init(|| {
        let versions = [ABI::V6, ABI::V5, ABI::V3, ABI::V2, ABI::V1];
        versions.into_iter().find(|abi| has(abi).is_ok()).map_or(0, |abi| abi as u32)
    })
}

/// Tells the operator, once, in how far agents are confined here.
pub(super) fn tell(wanted: bool) {
    static TOLD: Once = Once::new();
    if wanted {
        TOLD.call_once(|| match level() {
            0 => tracing::warn!("the kernel has no landlock: agents are not confined"),
            landlock => tracing::info!(landlock, "agents are confined"),
        });
    }
}

/// What is in `/dev`.
struct Devices {
    disks: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

fn devices() -> io::Result<Devices> {
    let mut devices = Devices { disks: Vec::new(), others: Vec::new() };
    for entry in fs::read_dir("/dev")? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_block_device() {
            devices.disks.push(entry.path());
        } else if !kind.is_symlink() {
            devices.others.push(entry.path());
        }
    }
    Ok(devices)
}

/// The largest trees and single files that hold nothing private; together with what is private, and the directories on the way
/// there, they are all there is.
fn readable(private: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let private: HashSet<PathBuf> = private.iter().filter_map(|path| real(path)).collect();
    let on_the_way: HashSet<&Path> = private.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    if on_the_way.is_empty() {
        return Ok(vec![PathBuf::from("/")]);
    }
    let mut readable = Vec::new();
    for directory in &on_the_way {
        // Inside something private nothing is readable, though something else private is named in there.
        if directory.ancestors().any(|above| private.contains(above)) {
            continue;
        }
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            // Where one may pass but not look, nothing beside the way can be named, and so nothing is allowed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            // A permission for a link would be one for what it leads to, which may be private and has its own otherwise.
            if !entry.file_type()?.is_symlink()
                && !private.contains(&path)
                && !on_the_way.contains(path.as_path())
            {
                readable.push(path);
            }
        }
    }
    Ok(readable)
}

// Without links, also where the last part is not there yet.
fn real(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path)
        .ok()
        .or_else(|| Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_beside_the_way_to_what_is_private_is_readable_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for name in ["data/inner", "other", "near/deep"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        for name in ["near/config.toml", "near/notes"] {
            fs::write(base.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(base.join("data"), base.join("link")).unwrap();
        let private = [
            base.join("link"),
            base.join("data/inner"),
            base.join("near/config.toml"),
            base.join("near/not-there-yet"),
        ];
        let all = readable(&private).unwrap();
        let mut here: Vec<&Path> = all.iter().filter_map(|path| path.strip_prefix(&base).ok()).collect();
        here.sort();
        assert_eq!(here, ["near/deep", "near/notes", "other"].map(Path::new));
        assert!(all.contains(&PathBuf::from("/usr")) && !all.contains(&PathBuf::from("/")));
        assert_eq!(readable(&[]).unwrap(), [PathBuf::from("/")]);
    }
}
