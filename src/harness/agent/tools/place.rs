//! Where a session's tools run: what each child process of one is started with.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

use crate::harness::child::{Launch, Launcher, Limits, Program};
use crate::harness::{Fence, StartOptions};
use crate::ids::SessionId;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Place {
    launcher: Launcher,
    session_id: SessionId,
    /// The session's workspace.
    pub workspace: PathBuf,
    /// The session's own directory.
    pub state_dir: PathBuf,
    /// Asked before each effect.
    pub fence: Fence,
}

impl Place {
    /// Prepares the session's own directory. Blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn prepare(launcher: &Launcher, options: &StartOptions) -> io::Result<Self> {
        Dir::open_ambient_dir(&options.state_dir, ambient_authority())?.create_dir_all("tmp")?;
        Ok(Self {
            launcher: launcher.clone(),
            session_id: options.session_id.clone(),
            workspace: options.workspace.clone(),
            state_dir: options.state_dir.clone(),
            fence: options.fence.clone(),
        })
    }

    /// Tells how to start a program: confined to the session's two directories, with what it is given of the environment.
    ///
    /// # Errors
    /// When it cannot be told.
    pub(super) fn launch(
        &self,
        argv: Vec<OsString>,
        inherit_env: &[String],
        env: &BTreeMap<String, String>,
        last_words: &str,
    ) -> io::Result<Launch> {
        self.launcher.launch(Program {
            session_id: &self.session_id,
            state_dir: &self.state_dir,
            workspace: &self.workspace,
            argv,
            inherit_env,
            env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            run_as: None,
            landlock: true,
            limits: Limits::default(),
            last_words,
        })
    }
}
