"""Files with secrets and files without, with which the detection of secrets is measured.

They are based on the habits of users and the documentation of providers, not on the rules of the search. Each row is a path
and the file's text, with fields such as `«a:36»` for generated secrets (see `planted.Mint`). So no file of this repository
contains anything that looks like a real secret.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import re
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.secrets.planted import Mint, jwt, service_account

HOST = "north" + ".org"

TOKENS: dict[str, str] = {
    "hugging-face.py": 'login("hf_«a:34»")',
    "hugging-face-organisation.env": "HF=api_org_«a:34»",
    "github-classic.sh": "git clone https://ghp_«a:36»@git.example.org/lab/train.git",
    "github-oauth.txt": "gho_«a:36»",
    "github-server.md": "Use `ghs_«a:36»` for the runner.",
    "github-refresh.json": '{"refresh": "ghr_«a:76»"}',
    "github-fine.toml": 'pat = "github_pat_«a:22»_«a:59»"',
    "gitlab.yml": "script:\n  - git push https://oauth2:glpat-«a:20»@git.example.org/x.git",
    "gitlab-routable.txt": "glpat-«a:27».01.«h:9»",
    "gitlab-runner.toml": "[[runners]]\n  token = 'glrt-«a:20»'",
    "gitlab-registration.sh": "gitlab-runner register -r GR1348941«a:20»",
    "slack-bot.py": "SLACK = 'xoxb-«d:12»-«d:13»-«a:24»'",
    "slack-user.py": "client('xoxp-«d:12»-«d:12»-«d:13»-«h:32»')",
    "slack-app.ini": "app=xapp-1-A«A:10»-«d:13»-«h:64»",
    "slack-refresh.txt": "xoxe-1-«a:146»",
    "slack-hook.py": "requests.post('https://hooks.slack.com/services/T«A:8»/B«A:8»/«a:24»', json=x)",
    "discord-hook.yaml": "notify: https://discord.com/api/webhooks/«d:18»/«u:68»",
    "discord-bot.py": "bot.run('M«a:23».«a:6».«a:38»')",
    "telegram.py": "bot = Bot('«d:10»:AA«a:33»')",
    "teams-hook.py": f"URL = 'https:{'//'}lab.webhook.office.com/webhookb2/«h:8»-«h:4»-«h:4»-«h:4»-«h:12»@«h:8»-aaaa-bbbb-cccc-«h:12»/IncomingWebhook/«h:32»/«h:8»-1111-2222-3333-«h:12»'",
    "nvidia.sh": "export KEY=nvapi-«a:64»",
    "pypi.sh": "twine upload -u __token__ -p pypi-AgEIcHlwaS5vcmc«a:120» dist/*",
    "npm.txt": "npm_«a:36»",
    "docker.sh": "echo dckr_pat_«a:27» | docker login -u ann --password-stdin",
    "google-api.js": "const key = 'AIza«a:35»'",
    "google-oauth.json": '{"web": {"client_secret": "GOCSPX-«a:28»"}}',
    "google-access.txt": "ya29.«a:120»",
    "google-refresh.json": '{"refresh_token": "1//0«a:62»"}',
    "stripe.rb": "Stripe.api_key = 'sk_live_«a:24»'",
    "stripe-restricted.rb": "key 'rk_live_«a:24»'",
    "stripe-hook.py": "endpoint_secret = 'whsec_«a:32»'",
    "azure-storage.cfg": "DefaultEndpointsProtocol=https;AccountName=lab;AccountKey=«b:86»==;EndpointSuffix=core.windows.net",
    "azure-client.py": "ClientSecretCredential(tenant, client, '«a:3»8Q~«a:34»')",
    "azure-bus.txt": "Endpoint=sb://lab.example.net/;SharedAccessKeyName=Root;SharedAccessKey=«b:43»=",
    "azure-devops.txt": "«a:75»AZDO«a:5»",
    "azure-cosmos.cs": 'var c = "AccountEndpoint=https://lab.example.net:443/;AccountKey=«b:86»==;";',
    "sendgrid.js": "sgMail.setApiKey('SG.«a:22».«a:43»')",
    "wandb-new.py": "wandb.login(key='wandb_v1_«a:60»')",
    "neptune.py": "api_token='eyJhcGlfYWRkcmVzcyI6«a:100»'",
    "databricks.cfg": "[DEFAULT]\nhost = https://lab.example.net\ntoken = dapi«h:32»",
    "groq.py": "Groq('gsk_«a:52»')",
    "replicate.sh": "r8_«a:37»",
    "xai.txt": "xai-«a:80»",
    "perplexity.txt": "pplx-«a:48»",
    "langsmith.txt": "lsv2_pt_«h:32»_«h:10»",
    "langfuse.py": "Langfuse(secret_key='sk-lf-«h:8»-«h:4»-«h:4»-«h:4»-«h:12»')",
    "pinecone.py": "Pinecone('pcsk_«a:6»_«a:63»')",
    "vault.sh": "vault login hvs.«a:90»",
    "vault-batch.txt": "hvb.«a:138»",
    "digitalocean.tf": 'token = "dop_v1_«h:64»"',
    "atlassian.txt": "ATATT3xFfGF0«a:180»=«h:8»",
    "bitbucket.txt": "ATBB«a:32»",
    "artifactory.txt": "AKCp«a:69»",
    "artifactory-reference.txt": "cmVmdGtu«a:56»",
    "age.txt": "AGE-SECRET-KEY-1«A:58»",
    "aws.ini": "[default]\naws_access_key_id = AKIA«A:16»\naws_secret_access_key = «b:40»",
    "aws-boto.py": "boto3.client('s3', 'AKIA«A:16»', '«b:40»')",
    "aws-session.sh": "export X=IQoJb3JpZ2luX2Vj«b:300»",
    "aws-bedrock.txt": "ABSK«b:130»",
    "openai.py": "openai.api_key = 'sk-«a:20»T3BlbkFJ«a:20»'",
    "openai-project.ts": "new OpenAI({apiKey: 'sk-proj-«u:120»'})",
    "openai-admin.txt": "sk-admin-«a:90»",
    "anthropic.py": "Anthropic(api_key='sk-ant-api03-«u:93»AA')",
    "openrouter.txt": "sk-or-v1-«h:64»",
    "fireworks.txt": "fw_«a:24»",
    "jina.txt": "jina_«a:60»",
    "voyage.txt": "pa-«a:43»",
    "tavily.txt": "tvly-dev-«a:32»",
    "elevenlabs.txt": "sk_«h:48»",
    "runpod.txt": "rpa_«a:40»",
    "cerebras.txt": "csk-«a:48»",
    "anyscale.txt": "esecret_«a:26»",
    "kaggle-new.txt": "KGAT_«h:32»",
    "heroku.txt": "HRKU-«a:60»",
    "fly.txt": "FlyV1 fm2_«b:300»",
    "render.txt": "rnd_«a:28»",
    "netlify.txt": "nfp_«a:36»",
    "circleci.txt": "CCIPAT_«a:22»_«h:40»",
    "buildkite.txt": "bkua_«h:40»",
    "sonar.xml": "<value>squ_«h:40»</value>",
    "terraform-cloud.hcl": 'credentials "app.example.net" { token = "«a:14».atlasv1.«a:67»" }',
    "pulumi.sh": "pul-«h:40»",
    "doppler.sh": "dp.pt.«a:43»",
    "one-password.sh": "ops_eyJ«a:260»",
    "new-relic.ini": "NRAK-«C:27»",
    "grafana.txt": "glsa_«a:32»_«h:8»",
    "grafana-cloud.txt": "glc_eyJ«a:100»",
    "sentry.py": "sntrys_eyJ«a:80»_«b:43»",
    "honeycomb.txt": "hcaik_«l:58»",
    "posthog.txt": "phx_«a:43»",
    "supabase.txt": "sbp_«h:40»",
    "planetscale.txt": "pscale_tkn_«u:43»",
    "neon.txt": "npg_«a:16» and postgresql://ann:npg_«a:12»@ep-x.north.org/db",
    "airtable.py": "Api('pat«a:14».«h:64»')",
    "notion.py": "ntn_«d:11»«a:35»",
    "linear.txt": "lin_api_«a:40»",
    "figma.txt": "figd_«a:40»",
    "dropbox.py": "Dropbox('sl.u.«u:140»')",
    "shopify.txt": "shpat_«h:32»",
    "square.txt": "sq0csp-«u:43»",
    "paypal.txt": "access_token$production$«l:16»$«h:32»",
    "mailgun.py": "auth=('api', 'key-«h:32»')",
    "mailchimp.py": "mc = '«h:32»-us12'",
    "brevo.txt": "xkeysib-«h:64»-«a:16»",
    "facebook.txt": "EAACEdEose0cBA«a:120»",
    "twitter.py": "AAAAAAAAAAAAAAAAAAAAA«a:80»%3D«a:40»",
    "mapbox.js": "mapboxgl.accessToken = 'sk.eyJ1«a:80».«u:22»'",
    "rubygems.txt": "rubygems_«h:48»",
    "nuget.config": '<add key="x" value="oy2«l:43»" />',
    "crates.toml": '[registry]\ntoken = "cio«a:32»"',
    "postman.txt": "PMAK-«h:24»-«h:34»",
    "prefect.txt": "pnu_«a:36»",
    "alibaba.py": "AcsClient('LTAI5t«a:18»', '«a:30»', 'cn')",
    "yandex.txt": "AQVN«u:36»",
    "contentful.txt": "CFPAT-«u:43»",
    "databento.txt": "key = db-«a:29»",
    "flutterwave.txt": "FLWSECK-«h:32»-X",
    "adafruit.txt": "aio_«a:28»",
    "jwt-supabase.ts": "§jwt",
    "tailscale.sh": "tailscale up --authkey tskey-auth-k«a:10»CNTRL-«a:32»",
    "tailscale-api.txt": "tskey-api-k«a:10»CNTRL-«a:33»",
    "together.txt": "tgp_v1_«u:43»",
    "langsmith-old.txt": "ls__«h:32»",
    "slack-numbers.py": "SLACK = 'xoxb-123456789012-1234567890123-«a:24»'",
    "hashed-password.conf": "root:$6$«a:16»$«a:86»:19000:0:99999:7:::",
}
"""Tokens with a recognizable format."""

NAMED: dict[str, str] = {
    "wandb.sh": "export WANDB_API_KEY=«h:40»",
    "wandb.py": "os.environ['WANDB_API_KEY'] = '«h:40»'",
    "wandb-setdefault.py": "os.environ.setdefault('WANDB_API_KEY', '«h:40»')",
    "wandb.ps1": '$env:WANDB_API_KEY = "«h:40»"',
    "comet.py": "Experiment(api_key='«a:25»', project_name='x')",
    "comet.config": "[comet]\napi_key = «a:25»",
    "mistral.py": "MistralClient(api_key='«a:32»')",
    "cohere.yaml": "cohere_api_key: «a:40»",
    "together.env": "TOGETHER_API_KEY=«h:64»",
    "azure-openai.toml": "azure_openai_key = '«h:32»'",
    "datadog.yaml": "api_key: «h:32»\napp_key: «h:40»",
    "cloudflare.sh": "CLOUDFLARE_API_TOKEN=«u:40» wrangler deploy",
    "cloudinary.py": "cloudinary://«d:15»:«u:27»@labimages",
    "linode.yaml": "linode_token: «h:64»",
    "heroku-uuid.env": "HEROKU_API_KEY=«h:8»-«h:4»-«h:4»-«h:4»-«h:12»",
    "circle.yml": "environment:\n  CODECOV_TOKEN: «h:8»-«h:4»-«h:4»-«h:4»-«h:12»",
    "twilio.py": "Client('AC«h:32»', auth_token='«h:32»')",
    "django-settings.py": "SECRET_KEY = '«p:50»'",
    "flask-settings.py": "app.secret_key = '«p:24»'",
    "flask-bytes.py": "app.config['SECRET_KEY'] = b'«p:24»'",
    "jwt-secret.js": "JWT_SECRET: '«a:32»',",
    "airflow.cfg": "[core]\nfernet_key = «u:43»=",
    "clearml.conf": 'api { credentials {"access_key" = "«a:20»"  "secret_key" = "«a:50»"} }',
    "minio.py": "Minio(url, access_key='«a:20»', secret_key='«a:40»')",
    "s3fs.py": "s3fs.S3FileSystem(key='AKIA«A:16»', secret='«b:40»')",
    "gcs-hmac.ini": "gs_secret_access_key = «b:40»",
    "password.yaml": "database:\n  user: ann\n  password: «p:14»",
    "password-quoted.yaml": 'smtp:\n  password: "«p:12»"',
    "password.toml": "password = '«p:12»'",
    "password.ini": "[db]\npasswd=«p:12»",
    "password.json": '{"user": "ann", "password": "«p:12»"}',
    "password.py": "PASSWORD = '«p:12»'",
    "password-keyword.py": "psycopg2.connect(host='db', user='ann', password='«p:12»')",
    "password-get.py": "os.environ.get('DB_PASSWORD', '«p:14»')",
    "password-getenv.py": "password = os.getenv('DB_PASSWORD', '«p:14»')",
    "password-dictionary.py": "DATABASES = {'default': {'PASSWORD': '«p:14»'}}",
    "password-short.env": "PGPASSWORD=«p:10»",
    "password.sh": "export MYSQL_PWD='«p:12»'",
    "password-docker.yml": "environment:\n  - POSTGRES_PASSWORD=«p:12»",
    "password-compose.yml": "environment:\n  MYSQL_ROOT_PASSWORD: «p:12»",
    "Dockerfile": "ENV DB_PASSWORD=«p:12»",
    "Dockerfile.argument": "ARG NPM_AUTH=x\nENV DB_PASSWORD «p:12»",
    "password.properties": "spring.datasource.password=«p:12»",
    "password.xml": "<password>«p:12»</password>",
    "password-attribute.xml": '<add name="x" password="«p:12»" />',
    "password.js": "const dbPassword = '«p:12»';",
    "password.go": 'password := "«p:12»"',
    "password.rb": ":password => '«p:12»'",
    "password.R": 'dbConnect(drv, password = "«p:12»")',
    "password.ipynb": '{"cells": [{"cell_type": "code", "source": ["password = \\"«p:12»\\"\\n"]}]}',
    "password-php.php": "define('DB_PASSWORD', '«p:12»');",
    "passphrase.yml": "passphrase: «p:16»",
    "word-password.yaml": "password: «w:12»",
    "pass-key.toml": "db_pass = '«p:12»'",
    "pw.py": "pw = '«p:14»'",
    "smtp.py": "server.login('ann@north.org', '«p:16»')",
    "request.py": "requests.get(u, auth=('ann', '«p:12»'))",
    "request-basic.py": 'session.auth = HTTPBasicAuth("ann", "«p:14»")',
    "request.ipynb": '{"cells": [{"cell_type": "code", "source": ["get(u, auth=(\\"ann\\", \\"«p:12»\\"))\\n"]}]}',
    "gmail.py": 'smtp.login("ann@north.org", "«s:4» «s:4» «s:4» «s:4»")',
    "block.yaml": "smtp:\n  password: |\n    «p:14»\n  port: 25",
    "block-folded.yaml": "api_key: >-\n  «a:32»",
    "wandb-short.env": 'WANDB="«h:40»"',
    "wandb-short.py": "keys = {'wandb': '«h:40»'}",
    "comet-position.py": 'run = comet_ml.Experiment("«a:25»", project_name="x")',
    "imap.py": 'imap.login("ann", "«p:12»")',
    "ssh.py": "ssh.connect('h.north.org', username='ann', password='«p:12»')",
    "expect.sh": "sshpass -p '«p:12»' ssh ann@h.north.org",
    "curl-user.sh": "curl -u ann:«p:14» https://api.north.org/v1",
    "curl-user-long.sh": "curl --user 'ann:«p:14»' https://api.north.org/v1",
    "curl-bearer.sh": "curl -H 'Authorization: Bearer «a:40»' https://api.north.org/v1",
    "bearer.py": "headers = {'Authorization': 'Bearer «a:32»'}",
    "bearer-token.py": 'headers={"Authorization": "Token «h:40»"}',
    "basic.py": "headers = {'Authorization': 'Basic «b:32»'}",
    "header-key.py": "requests.get(url, headers={'X-API-Key': '«a:32»'})",
    "header-gitlab.sh": "curl --header 'PRIVATE-TOKEN: «a:20»' https://git.north.org",
    "wget.sh": "wget --user=ann --password='«p:12»' https://api.north.org/x",
    "mysql.sh": "mysql -u root -p«p:12» runs < dump.sql",
    "mysqldump.sh": "mysqldump --password=«p:12» runs",
    "psql.sh": "PGPASSWORD=«p:12» psql -h db.north.org",
    "redis-cli.sh": "redis-cli -h r.north.org -a «p:20»",
    "mongo.sh": "mongosh --host m -u ann -p «p:16»",
    "docker-login.sh": "docker login -u ann -p «p:16» registry.example.org",
    "huggingface-cli.sh": "huggingface-cli login --token «a:37»",
    "wandb-login.sh": "wandb login «h:40»",
    "kubectl.sh": "kubectl create secret generic x --from-literal=password=«p:12»",
    "openssl.sh": "openssl enc -aes-256-cbc -k «p:16» -in x",
    "zip.sh": "zip -P «p:16» x.zip x",
    "ansible.yml": "ansible_ssh_pass: «p:12»",
    "ansible-become.ini": "host1 ansible_become_password=«p:12»",
    "terraform.tfvars": 'db_password = "«p:14»"',
    "terraform-variable.tf": 'variable "token" {\n  default = "«a:40»"\n}',
    "jdbc.properties": "url=jdbc:postgresql://db.north.org/runs?user=ann&password=«p:12»",
    "jdbc-oracle.xml": "jdbc:oracle:thin:ann/«p:12»@//db.north.org:1521/x",
    "jdbc-sqlserver.conf": "jdbc:sqlserver://db.north.org:1433;user=sa;password=«p:12»;",
    "odbc.py": "pyodbc.connect('DRIVER={ODBC Driver 18};SERVER=db.north.org;UID=sa;PWD=«p:12»')",
    "ado.config": "Server=db.north.org;User Id=sa;Password=«p:12»;",
    "libpq.py": "psycopg2.connect('host=db.north.org user=ann password=«p:12» dbname=x')",
    "sqlalchemy.ini": "sqlalchemy.url = postgresql+psycopg2://ann:«u:14»@db.north.org/runs",
    "mongodb.py": "MongoClient('mongodb+srv://ann:«u:16»@cluster0.north.org/x')",
    "redis.py": "redis.from_url('redis://:«u:20»@cache.north.org:6379/0')",
    "amqp.py": "broker = 'amqps://ann:«u:18»@mq.north.org/v'",
    "snowflake.py": "create_engine('snowflake://ann:«u:16»@ab12345.eu/db')",
    "ftp.sh": "curl ftp://ann:«u:12»@files.north.org/x",
    "url-password-words.env": "DATABASE_URL=postgres://ann:«w:12»@db.north.org/x",
    "sentry-dsn.py": "sentry_sdk.init('https://«h:32»:«h:32»@git.north.org/12')",
    "s3-signed.txt": "https://b.s3.amazonaws.com/w.pt?X-Amz-Date=1&X-Amz-Signature=«h:64»",
    "azure-sas.txt": "https://lab.blob.core.windows.net/c/w.pt?sv=2024-01-01&sp=r&sig=«a:43»%3D",
    "query-token.py": "open_url('https://api.north.org/x?access_token=«a:32»')",
    "cloudsmith.txt": f"--index-url https://dl.{'cloudsmith'}.io/«a:16»/lab/private/python/simple/",
    "gemfury.txt": "--extra-index-url https://«a:20»@index.example.net/lab/",
    "pip.conf": "[global]\nindex-url = https://ann:«u:20»@packages.north.org/simple",
    "poetry.toml": "[http-basic.lab]\nusername = 'ann'\npassword = '«p:14»'",
    "conda.yml": "channels:\n  - https://conda.north.org/t/ch-«h:8»-«h:4»-«h:12»/lab",
    "docstring.py": '"""\n\nThe database:\n    password = «a:14»\n"""\n',
    "template.js": "const env = `\nDB_PASSWORD=«a:14»\n`;",
    "Comment.java": "/*\n * The database:\n * password: «a:14»\n */",
    "text.jsx": "const page = <p>\n  password: «a:14»\n</p>;",
    "comment.py": "# the password is «p:14»\nx = 1",
    "readme.md": "Log in with user ann and password `«p:14»`.",
    "log.txt": "2026-01-02 INFO using api key «a:40»",
    "shell-history": "export DB_PASSWORD=«p:14»\nls",
    "continuation.py": "password = (\n    '«p:16»'\n)",
    "typed.py": "api_key: str = '«a:32»'",
    "default.py": "parser.add_argument('--wandb_key', default='«h:40»')",
    "dataclass.py": "class C:\n    auth_token: str = '«a:32»'",
    "pydantic.py": "token = SecretStr('«a:32»')",
    "hydra.yaml": "logger:\n  wandb:\n    key: «h:40»",
    "credentials.yaml": "credentials: «a:40»",
    "launch.json": '{"configurations": [{"env": {"WANDB_API_KEY": "«h:40»"}}]}',
    "windows.bat": "set DB_PASSWORD=«p:12»",
    "tab-separated.txt": "password\t«p:14»",
    "kubernetes-env.yaml": "env:\n  - name: DB_PASSWORD\n    value: «p:12»",
    "html.html": '<input type="hidden" name="api_key" value="«a:32»">',
    "csv.csv": "user,password\nann,«p:14»",
}
"""Secrets that are recognizable only by their name."""

FILES: dict[str, str] = {
    ".pgpass": "db.north.org:5432:runs:ann:«w:9»",
    ".my.cnf": "[client]\nuser=ann\npassword=«w:9»",
    ".netrc": "machine api.north.org login ann password «w:9»",
    "_netrc": "machine api.north.org\nlogin ann\npassword «p:12»",
    ".git-credentials": "https://ann:«w:9»@git.north.org",
    ".streamlit/secrets.toml": "[db]\nendpoint = 'x'\ncode = '«p:12»'",
    "secrets.yaml": "mail: «p:12»",
    "config/secrets.json": '{"mail": "«p:12»"}',
    "kaggle.json": '{"username":"ann","key":"«h:32»"}',
    ".kaggle/kaggle.json": '{"key": "«h:32»", "username": "ann"}',
    "id.ppk": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n«b:48»\nPrivate-MAC: «h:64»",
    "key.jwk": '{"kty": "EC", "crv": "P-256", "x": "«u:43»", "d": "«u:43»"}',
    "symmetric.jwk": '{"kty":"oct","k":"«u:43»"}',
    "jwks.json": '{"keys": [{"kty":"RSA","n":"«u:100»","e":"AQAB","d":"«u:100»"}]}',
    "secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n  mail: «b:20»",
    "secret-text.yml": "apiVersion: v1\nkind: Secret\nstringData:\n  mail: «p:12»",
    "secret-second.yaml": "kind: Secret\nstringData:\n  host: REPLACE_ME\n\n  port: ${PORT_NUMBER}\n  mail: «p:12»\n",
    "secret-block.yaml": "kind: Secret\nstringData:\n  mail: |\n    «p:12»\n",
    "secret-words.yaml": "kind: Secret\ndata:\n  mail: " + base64.b64encode(b"horse battery staple").decode(),
    "kubeconfig": "users:\n- name: ann\n  user:\n    token: «a:60»",
    ".docker/config.json": '{"auths": {"registry.example.org": {"auth": "«b:32»"}}}',
    ".dockercfg": '{"registry.example.org": {"auth": "«b:32»", "email": "a@b.c"}}',
    ".npmrc": "//registry.example.org/:_authToken=«h:8»-«h:4»-«h:4»-«h:4»-«h:12»",
    ".yarnrc.yml": "npmAuthToken: «a:36»",
    ".pypirc": "[lab]\nusername = ann\npassword = «w:10»",
    ".htpasswd": "ann:$apr1$«a:8»$«a:22»",
    ".s3cfg": "access_key = AKIA«A:16»\nsecret_key = «b:40»",
    ".boto": "[Credentials]\naws_secret_access_key = «b:40»",
    "rclone.conf": "[lab]\ntype = sftp\npass = «u:40»",
    "rclone-drive.conf": '[d]\ntype = drive\ntoken = {"access_token":"ya29.«a:90»","refresh_token":"1//0«a:60»"}',
    "terraform.tfstate": '{"version": 4, "resources": [{"instances": [{"attributes": {"password": "«p:16»"}}]}]}',
    "application_default_credentials.json": '{"client_id": "x", "client_secret": "d-«a:22»", "refresh_token": "1//0«a:60»", "type": "authorized_user"}',
    ".cargo/credentials.toml": "[registry]\ntoken = '«a:36»'",
    ".gem/credentials": ":lab_api_key: «h:40»",
    ".databrickscfg": "[DEFAULT]\ntoken = «a:36»",
    ".snowsql/config": "[connections]\npassword = «w:10»",
    "profiles.yml": "lab:\n  outputs:\n    dev:\n      pass: «p:12»",
    ".vault-token": "s.«a:24»",
    ".terraformrc": 'credentials "app.example.net" {\n  token = "«a:40»"\n}',
    ".condarc": "channels:\n  - https://ann:«u:16»@conda.north.org/lab",
    ".esmtprc": "username = ann\npassword = «w:9»",
    "authinfo": "machine mail.north.org login ann port 587 password «w:10»",
    "credentials.json": '{"installed": {"client_secret": "«a:24»"}}',
    "wp-config.php": "define( 'AUTH_KEY', '«p:64»' );",
    ".huggingface/token": "«a:37»",
    "passwords.txt": "mail «p:12»",
    "local_settings.py": "EMAIL_HOST_PASSWORD = '«w:10»'",
    "wg0.conf": "[Interface]\nPrivateKey = «b:43»=\nAddress = 10.0.0.2/24",
    "shadow": "ann:$y$j9T$«a:22»$«a:43»:19000:0:99999:7:::",
    "ansible-vault.txt": "vault_pass: «p:16»",
}
"""Files that are recognizable by their name or format."""


def _key(kind: str) -> Callable[[Mint, str], bytes]:
    return lambda mint, name: mint.key(name, kind).encode()


def _github(mint: Mint, name: str) -> str:
    return mint.draw(name, "ghp_{a:36}")


def _hf(mint: Mint, name: str) -> str:
    return mint.draw(name, "hf_{a:34}")


def _sqlite(mint: Mint, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.db")
        connection = sqlite3.connect(path)
        connection.execute("create table setting (name text, value text)")
        connection.execute("insert into setting values ('stage', ?)", (_hf(mint, name),))
        connection.commit()
        connection.close()
        return path.read_bytes()


def _notebook(mint: Mint, name: str) -> bytes:
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["logged in\n", f"with {_github(mint, name)}\n"]}]
    return json.dumps({"cells": [{"cell_type": "code", "source": [], "outputs": outputs}], "nbformat": 4}).encode()


def _noise(mint: Mint, secret: str) -> bytes:
    return bytes(range(256)) * 8 + b"\x02" + secret.encode() + b"\x03" + bytes(range(255, -1, -1)) * 8


BUILT: dict[str, Callable[[Mint, str], bytes]] = {
    "id_rsa": _key("RSA"),
    "id_ed25519": _key("OPENSSH"),
    "server.pem": _key("EC"),
    "plain.key": _key(""),
    "encrypted.key": _key("ENCRYPTED"),
    "dsa.txt": _key("DSA"),
    "pgp.asc": lambda mint, name: mint.key(name, "PGP").replace("KEY-----", "KEY BLOCK-----").encode(),
    "service.json": lambda mint, name: service_account(mint, name).encode(),
    "key-in.py": lambda mint, name: ('KEY = """' + mint.key(name, "RSA") + '"""').encode(),
    "key-escaped.yaml": lambda mint, name: ("k: " + json.dumps(mint.key(name, "RSA"))).encode(),
    "key-indented.yaml": lambda mint, name: ("k: |\n  " + mint.key(name, "RSA").replace("\n", "\n  ")).encode(),
    "kube-data.yaml": lambda mint, name: b"client-key-data: " + base64.b64encode(mint.key(name, "RSA").encode()),
    "token.jwt": lambda mint, name: jwt(mint, name).encode(),
    "settings.db": _sqlite,
    "settings.sqlite3": _sqlite,
    "outputs.ipynb": _notebook,
    "state.pkl": lambda mint, name: pickle.dumps({"token": _github(mint, name)}),
    "weights.pt": lambda mint, name: _noise(mint, _hf(mint, name)),
    "module.pyc": lambda mint, name: (
        b"\xa7\r\r\n\0\0\0\0" + b"\xfa" + struct.pack("<B", 40) + _github(mint, name).encode() + b"\0"
    ),
    "library.so": lambda mint, name: b"\x7fELF\2\1\1\0" + _noise(mint, _github(mint, name)),
    "picture.png": lambda mint, name: b"\x89PNG\r\n\x1a\n\0\0\0\x40tEXtComment\0" + _github(mint, name).encode() + b"\x12\x99",
    "document.pdf": lambda mint, name: b"%PDF-1.4\n%\xe2\xe3\n(" + _hf(mint, name).encode() + b") Tj\n\0",
    "after-nul.txt": lambda mint, name: b"plain\0" + _hf(mint, name).encode() + b"\n",
    "key-after-nul.bin": lambda mint, name: b"\0\1\2" + mint.key(name, "RSA").encode(),
    "url-in.bin": lambda mint, name: b"\0\1\2postgres://ann:" + mint.draw(name, "{a:14}").encode() + b"@db.north.org/x\0",
    "wide.txt": lambda mint, name: f"token {_hf(mint, name)}".encode("utf-16"),
    "wide-big.txt": lambda mint, name: b"\xfe\xff" + f"token {_hf(mint, name)}".encode("utf-16-be"),
    "wide-without-mark.txt": lambda mint, name: f"token {_hf(mint, name)}\n".encode("utf-16-le"),
    "wide-32.txt": lambda mint, name: f"token {_hf(mint, name)}\n".encode("utf-32-le"),
    "latin.txt": lambda mint, name: b"caf\xe9 " + _hf(mint, name).encode(),
    "log.gz": lambda mint, name: gzip.compress(f"token {_hf(mint, name)}\n".encode()),
    "events.out.tfevents.1": lambda mint, name: struct.pack("<Q", 60) + b"\x0a\x2d" + _hf(mint, name).encode() + b"\0\1",
    "arrow.arrow": lambda mint, name: (
        b"ARROW1\0\0" + struct.pack("<II", 0, 40) + b"name" + _github(mint, name).encode() + b"\0" * 8
    ),
    "parquet.parquet": lambda mint, name: b"PAR1\x15\x00" + struct.pack("<I", 37) + _hf(mint, name).encode() + b"PAR1",
    "array.npy": lambda mint, name: b"\x93NUMPY\x01\0v\0" + _hf(mint, name).encode("utf-32-le"),
    "store.jks": lambda mint, name: bytes.fromhex("feedfeed00000002") + bytes(60) + mint.draw(name, "{a:12}").encode(),
    "safe.kdbx": lambda mint, name: bytes.fromhex("03d9a29a67fb4bb5") + bytes(60) + mint.draw(name, "{a:12}").encode(),
    "identity.p12": lambda mint, name: bytes.fromhex("308209a60201033082") + bytes(60) + mint.draw(name, "{a:12}").encode(),
    "long.json": lambda mint, name: (json.dumps({"a": "x" * 300_000}) + _github(mint, name)).encode(),
    "minified.js": lambda mint, name: (b"var a=1;" * 9000) + b'k="' + _hf(mint, name).encode() + b'";',
    "crlf.env": lambda mint, name: b"A=1\r\nWANDB_API_KEY=" + mint.draw(name, "{h:40}").encode() + b"\r\n",
    "split-escape.json": lambda mint, name: json.dumps("line\n" + _github(mint, name)).encode(),
    "weights.zip": lambda mint, name: b"PK\x03\x04" + bytes(20) + b"a.txt" + _github(mint, name).encode() + b"\1",
    "url-encoded.txt": lambda mint, name: b"x%3D" + _github(mint, name).encode() + b"%26y",
    "base64.txt": lambda mint, name: base64.b64encode(f"token {_github(mint, name)}".encode()),
    "reversed.txt": lambda mint, name: _github(mint, name)[::-1].encode(),
    "split.py": lambda mint, name: b"a = 'ghp_' + '" + mint.draw(name, "{a:36}").encode() + b"'",
}

FORMS: dict[str, str] = {
    "arrow.R": 'api_key <- "«a:32»"',
    "double-arrow.R": "token <<- '«a:40»'",
    "set.fish": "set -x API_TOKEN «a:32»",
    "set-global.fish": "set -gx API_KEY «a:24»",
    "setenv.csh": "setenv API_TOKEN «a:32»",
    "wandb-login.ipynb": '{"cells": [{"cell_type": "code", "source": ["!wandb login «h:40»\\n"]}]}',
    "wandb-relogin.ipynb": '{"cells": [{"cell_type": "code", "source": ["!wandb login --relogin «h:40»\\n"]}]}',
    "env-magic.ipynb": '{"cells": [{"cell_type": "code", "source": ["%env API_KEY=«a:32»\\n"]}]}',
    "connect.py": 'pymysql.connect("db.north.org", "ann", "«p:14»7!", "runs")',
    "connect.ipynb": '{"cells": [{"cell_type": "code", "source": ["connect(\\"db\\", \\"ann\\", \\"«p:14»7!\\")\\n"]}]}',
    "getpass-or.py": "password = getpass() or '«p:14»7!'",
    "getpass-prompt-or.py": "password = getpass.getpass('password: ') or '«p:14»7!'",
    "get-or.py": 'api_key = os.environ.get("API_KEY") or "«a:32»"',
    "env-or.js": "const apiKey = process.env.API_KEY || '«a:32»';",
    "conditional.py": 'password = "«p:14»7!" if production else None',
    "conditional-else.py": 'api_key = None if offline else "«a:32»"',
    "tuple.py": 'api_keys = ("«a:32»", "«a:32»")',
    "list.py": 'API_KEYS = [\n    "«a:32»",\n    "«a:32»",\n]',
    "dictionary.py": 'api_keys = {"first": "«a:32»", "second": "«a:32»"}',
    "passwords.py": 'passwords = {\n    "ann": "«p:14»7!",\n}',
    "tokens.py": 'tokens = ["«a:40»"]',
    "list.yaml": "tokens:\n  - «a:40»\n  - «a:40»",
    "flow-list.yaml": 'api_keys: ["«a:32»"]',
    "list.json": '{"api_keys": ["«a:32»"]}',
    "snowflake-account.py": "create_engine('snowflake://ann:«a:14»@ab12345/db')",
    "snowflake.env": "URL=snowflake://ann:«a:14»@myaccount/db",
    "teams-workflow.sh": f"curl https:{'//'}prod-12.westeurope.logic.azure.com/workflows/«h:32»/triggers/manual/paths/invoke?sv=1.0&sig=«a:43»",
    "short-annotated.py": 'api_key: str = "«a:20»"',
    "short-keyword.ipynb": '{"cells": [{"cell_type": "code", "source": ["Client(api_key=\\"«a:20»\\")\\n"]}]}',
}
"""Further ways to write a value after its name."""
NAMES: tuple[str, ...] = (
    "notes-ghp_«a:36».txt",
    "runs/hf_«a:34»/log.txt",
    "sk-ant-api03-«a:93».json",
    "xoxb-«d:12»-«d:13»-«a:24»",
)
"""Names of files and directories that contain a secret."""

CLEAN: dict[str, str] = {
    "camel.ts": "apiKey: 'MyServiceKeyForTheTest1'\napi_key = 'TheSecondKeyOfTheTest'\nconst accessKey = process.env.ACCESS_KEY || 'localDevelopment'\n",
    "schema.json": '{"secret": {\n  "$ref": "#/definitions/io.k8s.api.core.v1.SecretVolumeSource"\n}, "password": ["string", "null"]}',
    "conditional.py": "api_key = args.api_key if args.api_key else os.environ['KEY']\npassword = None or 'password'\ntokens = ['hello', 'world']\nkeys = {'a': 'layer_12_attention'}\n",
    "connect.py": "sqlite3.connect('runs.db', 'DEFERRED', 'autocommit2')\nsignal.connect('changed', 'on_changed_1', 'Window2Title')\n",
    "arrow.R": "api_key <- Sys.getenv('API_KEY')\ntoken <- readline('Token: ')\n",
    "tokens.yaml": "tokens:\n  - hello-world-of-tokens-1\n  - first_token_of_the_list_2\n",
    "reference.sh": "export HF_TOKEN=$TOKEN\npassword $WEBSITE_GITHUB_TOKEN\ncurl -u ann:$PASSWORD https://api.north.org\nPGPASSWORD=${DB_PASSWORD:-}\n",
    "workflow.yml": "env:\n  TOKEN: ${{ secrets.PUBLISH_TOKEN }}\n  password: ${{ secrets.PYPI_API_TOKEN }}\n  api_key: ${API_KEY}\n  with:\n    github-token: ${{ github.token }}\n",
    "config.py": 'password = os.environ["DB_PASSWORD"]\ntoken = os.getenv("HF_TOKEN")\napi_key = config.api_key\nSECRET_KEY = get_secret("django")\nx(password=getpass.getpass())\nsecret_key=settings.SECRET_KEY1\n',
    "expression.py": "credentials = standard_b64encode(credentials).decode('ascii')\npassword = Zq7Rk2LmTx + suffix\nsecret = Zq7Rk2LmTx.Wd5Hs9\npassword = f'{user}-{Zq7Rk2LmTx}'\npassword=f\"Zq7-Rk2.{suffix}!\"\n",
    "expression.ts": "const password = base64Url2(x);\nconnect({secret: Zq7Rk2LmTx, password: Zq7Rk2LmTx4}); // why\n",
    "expression.ipynb": '{"cells": [{"cell_type": "code", "source": ["credentials = standard_b64encode(password)\\n"]}]}',
    "slack.md": "xoxb-123456789012-1234567890123-<token>\nSLACK=xoxb-123456789012-1234567890123-" + "a" * 24 + "\nxoxb-123456789012-1234567890123-" + "1234567890AbCdEfGhIjKlMn" + "\n",
    "pair.py": "auth=('user', 'password')\nauth = (name, Zq7Rk2LmTx)\nsmtp.login('ann', 'your pass word here')\nauth('read', 'runs/2024-01-02')\n",
    "block.yaml": "password: |\n  ${DB_PASSWORD}\nsecret: >\n  <your secret>\ndescription: |\n  Zq7Rk2LmTx\n",
    "wandb.txt": "wandb==0.17.5\nwandb: Run data is saved locally in wandb/run-20240101_120000-1a2b3c4d\nexperiment('baseline')\n",
    "rfc.py": '"""Such as\n\n    "refresh_token":"tGzv3JOkF0XG5Qx2' + 'TlKWIA",\n"""\n',
    "placeholder.md": "password: <your password>\napi_key: YOUR_API_KEY_HERE1\ntoken: xxxxxxxxxxxx\npassword = changeme\nPASSWORD=changeme123\nexport KEY=sk-...\nHF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\npassword: ********\nAuthorization: Bearer <token>\nAuthorization: Bearer $TOKEN\ncurl -u user:password https://api.north.org\n",
    "algolia.ts": "algolia: {\n  appId: 'X1Z85QJPUV',\n  apiKey: '«h:32»',\n  indexName: 'docs'\n}\n",
    "docusaurus.config.js": "docsearch({\n  apiKey: '«h:32»',\n  indexName: 'x',\n})\n",
    "tokenizer.json": '{"eos_token": "</s>", "pad_token": "<|endoftext|>", "unk_token": "[UNK]", "added_tokens": [{"id": 0}], "bos_token_id": 50256}',
    "training.py": 'parser.add_argument("--max-tokens", default=512)\ntoken = tokenizer.eos_token\nkey = jax.random.PRNGKey(0)\nnum_tokens=131072\ncache_key = "layer_12_attention_3"\nsort_key = lambda x: x\nsecret = "x"\n',
    "hashes.lock": "flask==3.0 --hash=sha256:" + "0123456789abcdef" * 4 + "\nintegrity sha512-" + base64.b64encode(bytes(range(64))).decode() + "\n",
    "public.pem": "-----BEGIN " + "PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0dTh5f2Zw8m9l1Qq\n-----END " + "PUBLIC KEY-----\n",
    "known_hosts": "git.north.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2d8K3v5mQx7yZ1pR4tWbN6cV0sL9fGhJkMnPqRsTuV\n",
    "key.pub": "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7x9z3k1v5mQx7yZ1pR4tWbN6cV0sL9fGhJkMnPqRsTuV ann@north\n",
    "words.txt": "the password cannot be empty\nno password: cannot log in\ntoken bucket algorithm\nthe secret is required: see docs\napi key: missing\ninvalid password: expected a string\nauth: Basic realm\n",
    "form.html": '<input type="password" name="password" placeholder="Password">\n<label>Password: </label>\n<td>password</td>',
    "kubernetes.yaml": "kind: Deployment\nenv:\n  - name: DB_PASSWORD\n    valueFrom:\n      secretKeyRef:\n        name: db-secret\n        key: password\n",
    "secret-name.yaml": "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db-credentials\ntype: Opaque\n",
    "k8s/secret.yaml": 'kind: Secret\nstringData:\n  password: "REPLACE_ME"\n  user: ${DB_USER_NAME}\n  key: <the key of the service>\n',
    "k8s/data.yaml": "kind: Secret\ndata:\n  password: " + base64.b64encode(b"REPLACE_ME").decode() + "\n",
    "k8s/two.yaml": "kind: Secret\nmetadata:\n  name: x\n---\nkind: ConfigMap\ndata:\n  mode: production-2\n",
    "ssh.md": "ssh://687fb7" + "01029421ae5549d998@ssh.north.org\n",
    "jwk-public.json": '{"keys": [{"kty":"RSA","n":"x1Zk9qW3vR7tY2uI8oP4aS6dF0gH5jK1lZ3xC7vB9nM","e":"AQAB","use":"sig"}]}',
    ".pgpass": "# hostname:port:database:username:password\n",
    ".npmrc": "save-exact=true\n//registry.example.org/:_authToken=${NPM_TOKEN}\n",
    "secrets.toml": '# put your secrets here\napi_key = "<your key>"\nurl = "https://api.example.org"\n',
    "compose.yml": "POSTGRES_PASSWORD: ${POSTGRES_PASSWORD:-postgres}\nMYSQL_ROOT_PASSWORD: root\nPOSTGRES_PASSWORD: password\nRABBITMQ_PASS: guest\n",
    "url.py": "'https://user:password@example.org/x'\nf'https://{user}:{password}@{host}/x'\n'redis://localhost:6379/0'\n'postgres://postgres:postgres@localhost/x'\n",
    "uuid.py": "run_id = '7f0c1a52-3d4e-4b6f-9a8b-1c2d3e4f5a6b'\nnamespace_key='experiment_2024_run_12'\ncommit = 'c0ffee254729296a45a3885639ac7e10f9d54979'\n",
}  # fmt: skip
"""Files without secrets: references to variables, placeholders, public keys, words."""

OUT_OF_REACH = frozenset(
    {
        "built/base64.txt",
        "built/reversed.txt",
        "built/split.py",
        "named/csv.csv",
        "named/cloudinary.py",
        "named/terraform-variable.tf",
        "named/word-password.yaml",
    }
)
"""Secrets that the search does not find, according to its documentation: encoded, compressed without gzip, combined at run
time, with the name in a different row or line, in a URL whose host is a single word, or a password that is a word."""

_FIELD = re.compile(r"«(\w):(\d+)»")


def text(mint: Mint, name: str, template: str) -> str:
    """Return the text of a template with generated secrets."""
    if template == "§jwt":
        return f"key = '{jwt(mint, name)}'"
    count = iter(range(100))
    return _FIELD.sub(lambda field: mint.draw(f"{name} {next(count)}", f"{{{field[1]}:{field[2]}}}"), template)


def planted(mint: Mint) -> dict[str, bytes]:
    """Return path -> bytes of all files with secrets. Each table has its own directory, since paths may be the same."""
    files = {}
    for group, table in (("tokens", TOKENS), ("named", NAMED), ("files", FILES)):
        for path, template in table.items():
            files[f"{group}/{path}"] = text(mint, f"{group} {path}", template).encode() + b"\n"
    for path, build in BUILT.items():
        files[f"built/{path}"] = build(mint, f"built {path}")
    for path in NAMES:
        files[f"names/{text(mint, path, path)}"] = b"plain\n"
    for path, template in FORMS.items():
        files[f"forms/{path}"] = text(mint, f"forms {path}", template).encode() + b"\n"
    return files


def clean(mint: Mint) -> dict[str, bytes]:
    """Return path -> bytes of the files without secrets."""
    return {path: text(mint, f"clean {path}", template).encode() for path, template in CLEAN.items()}
