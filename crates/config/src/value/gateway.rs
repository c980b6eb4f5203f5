//! Values of programs and scripts.

use nix::unistd::{Group, User};

use super::parse::Wrong;
use crate::model::gateway::ProgramUser;

/// Reads a user: a name that the system knows, or a number, which needs no name, and is then also the group's.
pub(super) fn parse_program_user(text: &str) -> Result<ProgramUser, Wrong> {
    let user = parse_user(text)?;
    if user.user_id == 0 {
        return Err(Wrong::help("programs cannot run as root", "choose a user with few permissions"));
    }
    Ok(user)
}

/// Reads a user like [`parse_program_user`], but accepts root.
pub(crate) fn parse_user(text: &str) -> Result<ProgramUser, Wrong> {
    Ok(match User::from_name(text) {
        Ok(Some(user)) => ProgramUser { user_id: user.uid.as_raw(), group_id: user.gid.as_raw() },
        Ok(None) => match text.parse() {
            Ok(id) => ProgramUser { user_id: id, group_id: id },
            Err(_) => return Err(Wrong::new(format!("there is no user `{text}`"))),
        },
        Err(error) => return Err(Wrong::new(format!("the user `{text}` cannot be looked up: {error}"))),
    })
}

/// Reads a group likewise.
pub(super) fn parse_program_group(text: &str) -> Result<u64, Wrong> {
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(u64::from(group.gid.as_raw())),
        Ok(None) => text.parse::<u32>().map(u64::from).map_err(|_| Wrong::new(format!("there is no group `{text}`"))),
        Err(error) => Err(Wrong::new(format!("the group `{text}` cannot be looked up: {error}"))),
    }
}

/// Reads the name of a variable.
pub(super) fn parse_variable_name(text: &str) -> Result<String, Wrong> {
    let is_fit = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if text.is_empty() || !is_fit || text.as_bytes()[0].is_ascii_digit() {
        let help = "use letters, digits and `_`, and do not begin with a digit";
        return Err(Wrong::help(format!("`{text}` is not the name of a variable"), help));
    }
    Ok(text.to_owned())
}
