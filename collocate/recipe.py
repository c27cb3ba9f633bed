from collocate.app import app
