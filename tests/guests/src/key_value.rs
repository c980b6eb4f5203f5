//! Guest's access to the host's key-value store (`wasi:keyvalue`), and the results.

use self::wasi::keyvalue::store::Error;
use self::wasi::keyvalue::{atomics, batch, store};

wit_bindgen::generate!({
    path: "../../crates/modules/src/key_value.wit",
    generate_all,
});

/// Runs `STORE,OPERATION,ARGUMENTS…`, and returns the result.
pub(crate) fn answer(query: &str) -> String {
    match carry_out(&query.split(',').collect::<Vec<_>>()) {
        Ok(reported) => reported,
        Err(Error::NoSuchStore) => "no such store".to_owned(),
        Err(Error::AccessDenied) => "access denied".to_owned(),
        Err(Error::Other(message)) => format!("error: {message}"),
    }
}

fn carry_out(words: &[&str]) -> Result<String, Error> {
    let bucket = store::open(words[0])?;
    let text = |value: Option<Vec<u8>>| value.map_or("none".to_owned(), |value| String::from_utf8(value).unwrap());
    Ok(match &words[1..] {
        ["get", key] => text(bucket.get(key)?),
        ["set", key, value] => bucket.set(key, value.as_bytes()).map(|()| "set".to_owned())?,
        ["fill", key, bytes] => bucket.set(key, &vec![b'x'; bytes.parse().unwrap()]).map(|()| "set".to_owned())?,
        ["delete", key] => bucket.delete(key).map(|()| "deleted".to_owned())?,
        ["exists", key] => bucket.exists(key)?.to_string(),
        ["keys"] => bucket.list_keys(None)?.keys.join(" "),
        ["increment", key, delta] => atomics::increment(&bucket, key, delta.parse().unwrap())?.to_string(),
        ["set-many", pairs @ ..] => {
            let pairs: Vec<_> = pairs.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].as_bytes().to_vec())).collect();
            batch::set_many(&bucket, &pairs).map(|()| "set".to_owned())?
        }
        ["get-many", keys @ ..] => {
            let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
            let values = batch::get_many(&bucket, &keys)?;
            values.into_iter().map(|value| text(value.map(|(_, value)| value))).collect::<Vec<_>>().join(" ")
        }
        ["delete-many", keys @ ..] => {
            let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
            batch::delete_many(&bucket, &keys).map(|()| "deleted".to_owned())?
        }
        _ => "what?".to_owned(),
    })
}
