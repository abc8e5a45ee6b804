//! Another user for an agent: who that is, what is given to them, and becoming them.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, access, chownat, fstat, openat,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// A user and the one group that they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    uid: u32,
    gid: u32,
}

impl RunAs {
    /// `UID:GID`, or the name of a user of this machine, who has the group that the user database says.
    ///
    /// # Errors
    /// In words, when there is no such user, or it is root: an agent that stays root need not become anybody.
    pub(in crate::harness) fn resolve(text: &str) -> Result<Self, String> {
        let user = text.parse().or_else(|_| {
            let users = fs::read_to_string("/etc/passwd").map_err(|error| format!("/etc/passwd: {error}"))?;
            Self::named(text, &users).ok_or_else(|| format!("{text:?} is neither UID:GID nor a user"))
        })?;
        if user.uid == 0 { Err("root is nobody to become".to_owned()) } else { Ok(user) }
    }

    fn named(name: &str, users: &str) -> Option<Self> {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let entry = users.lines().map(fields).find(|entry| entry.first().is_some_and(|user| user == name))?;
        Some(Self { uid: entry.get(2)?.parse().ok()?, gid: entry.get(3)?.parse().ok()? })
    }

    /// Gives the directory and all that is in it to the user. Works along directory handles and follows no link; a file that has
    /// another name elsewhere stays as it is.
    pub(super) fn own(self, directory: &Path) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.own_below(&openat(CWD, directory, flags, Mode::empty())?)
    }

    fn own_below(self, directory: &OwnedFd) -> io::Result<()> {
        self.own_one(directory)?;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                self.own_entry(directory, name)?;
            }
        }
        Ok(())
    }

    fn own_entry(self, directory: &OwnedFd, name: &CStr) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = openat(directory, name, flags, Mode::empty())?;
        let stat = fstat(&entry)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return self.own_below(&openat(&entry, c".", flags, Mode::empty())?);
        }
        if stat.st_nlink == 1 { self.own_one(&entry) } else { Ok(()) }
    }

    fn own_one(self, file: impl AsFd) -> io::Result<()> {
        if fstat(&file)?.st_uid != self.uid {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// Becomes the user, for good. Needs root, and a process of one thread.
    pub(super) fn become_user(self) -> io::Result<()> {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(self.gid))?;
        set_thread_uid(Uid::from_raw(self.uid))?;
        Ok(())
    }

    /// Whether the user, who one is by now, can use the directory.
    ///
    /// # Errors
    /// In words, when not.
    pub(super) fn check_access(self, directory: &Path) -> Result<(), String> {
        let what = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        access(directory, what).map_err(|error| {
            let path = directory.display();
            format!("the user {self} cannot use {path} ({error}); every directory above must let them pass")
        })
    }
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for RunAs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        // The highest number stands for "as it is" in the system's calls.
        match ids {
            Some((uid, gid)) if uid != u32::MAX && gid != u32::MAX => Ok(Self { uid, gid }),
            _ => Err(format!("{text:?} is not UID:GID")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_two_numbers_or_a_name_and_never_root() {
        assert_eq!(RunAs::resolve("65534:65533"), Ok(RunAs { uid: 65534, gid: 65533 }));
        let users = "root:x:0:0:root:/root:/bin/sh\nagent:x:1001:1002::/home/agent:/bin/sh\n";
        assert_eq!(RunAs::named("agent", users), Some(RunAs { uid: 1001, gid: 1002 }));
        assert_eq!(RunAs::named("age", users), None);
        for wrong in ["0:0", "root", "1001", "1001:", "-1:1", "4294967295:1", "no-such-user", ""] {
            assert!(RunAs::resolve(wrong).is_err(), "{wrong}");
        }
    }
}
